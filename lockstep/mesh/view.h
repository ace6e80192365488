// Sets of axes, and folds: other axes over the ranks of some of the mesh's. Every group of ranks is a view; nothing here
// knows a rank, Mesh (mesh.h) turns a view into ranks by arithmetic.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::mesh {

enum class Axis {
  // The mesh's own, slowest first: tp varies fastest, pp slowest (Megatron-LM's order), so tp groups are neighbours on one node.
  kPp, kDpReplicate, kDpShard, kCp, kTp,
  // Folded, slowest first: of experts (expert_fold), of key/value heads that several ranks of tp hold (heads_fold), of the nodes of a
  // cluster among the ranks that share experts (expert_node_fold), of rings of context 2d (context_fold).
  kEdpReplicate, kEdpShard, kEp, kEtp,
  kKvParts, kKvCopies,
  kEpNodes, kEpNode,
  kCpOuter, kCpInner,
};
inline constexpr std::array<Axis, 5> kAxes = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
std::string_view axis_name(Axis axis);  // "dp_shard", "ep"; "kv" for kKvCopies

// Iterates in the order of Axis: slowest first.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(uint32_t{1} << static_cast<uint32_t>(axis)) {}  // NOLINT(google-explicit-constructor)

  constexpr bool empty() const { return bits_ == 0; }
  constexpr int size() const { return std::popcount(bits_); }
  constexpr bool contains(AxisSet axes) const { return (bits_ & axes.bits_) == axes.bits_; }
  constexpr AxisSet with(AxisSet axes) const { return of(bits_ | axes.bits_); }
  constexpr AxisSet without(AxisSet axes) const { return of(bits_ & ~axes.bits_); }
  auto operator<=>(const AxisSet&) const = default;

  class Iterator {
   public:
    constexpr explicit Iterator(uint32_t left) : left_(left) {}
    constexpr Axis operator*() const { return static_cast<Axis>(std::countr_zero(left_)); }
    constexpr Iterator& operator++() {
      left_ &= left_ - 1;
      return *this;
    }
    constexpr bool operator==(const Iterator&) const = default;

   private:
    uint32_t left_;  // axes still to come
  };
  constexpr Iterator begin() const { return Iterator(bits_); }
  constexpr Iterator end() const { return Iterator(0); }

 private:
  static constexpr AxisSet of(uint32_t bits) {
    AxisSet set;
    set.bits_ = bits;
    return set;
  }
  uint32_t bits_ = 0;
};
constexpr AxisSet operator|(AxisSet a, AxisSet b) { return a.with(b); }
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }
constexpr AxisSet operator&(AxisSet a, AxisSet b) { return a.without(a.without(b)); }

struct Factor {
  Axis axis = Axis::kEp;  // a folded one
  int degree = 1;
  auto operator<=>(const Factor&) const = default;
};

// The ranks of a block of the mesh's axes, numbered in their order, as digits of other axes: factor i of degree d_i, slowest
// first, and the product of all d_i is the number of ranks of the block. Without factors: the mesh's own axes.
class Fold {
 public:
  static constexpr size_t kMaxFactors = 4;
  constexpr Fold() = default;
  // `block`: neighbours in kAxes, so that their ranks have one number. InternalError where they are not, where a factor is
  // one of the mesh's own axes, or where a degree is below 1.
  Fold(AxisSet block, std::initializer_list<Factor> factors);

  AxisSet block() const { return block_; }
  std::span<const Factor> factors() const { return {factors_.data(), count_}; }
  auto operator<=>(const Fold&) const = default;

 private:
  AxisSet block_;
  size_t count_ = 0;
  std::array<Factor, kMaxFactors> factors_{};  // behind count_: Factor{}
};

// The ranks of one coordinate on pp as experts see them (Liu et al. 2025, MoE Parallel Folding): etp fastest, then ep, then
// the ranks that hold the same expert.
struct ExpertDegrees {
  int edp_replicate = 1;
  int edp_shard = 1;
  int ep = 1;
  int etp = 1;
};
Fold expert_fold(const ExpertDegrees& degrees);
// The same ranks, those over ep and etp as nodes (kEpNodes) of `node` neighbours (kEpNode); the others are one factor, kEdpShard. InternalError
// where `node` does not divide ep x etp.
Fold expert_node_fold(const ExpertDegrees& degrees, int node);
// The ranks of cp as rings (kCpOuter) across groups of `inner` neighbours (kCpInner). InternalError where `inner` does not divide cp.
Fold context_fold(int cp, int inner);
// The ranks of tp where `copies` neighbours hold the same key/value heads.
Fold heads_fold(int tp, int copies);

// Which ranks work together: those that differ along `axes` alone. With a fold these are factors of it, or axes of the mesh
// outside its block. A View is a description, the same on every rank; without axes it is a group of one.
struct View {
  constexpr View() = default;
  constexpr View(Axis axis) : axes(axis) {}                                // NOLINT(google-explicit-constructor)
  constexpr View(AxisSet several) : axes(several) {}                       // NOLINT(google-explicit-constructor)
  constexpr View(const Fold& over, AxisSet several) : fold(over), axes(several) {}
  Fold fold{};
  AxisSet axes{};
  auto operator<=>(const View&) const = default;
};
std::string view_name(const View& view);  // "pp x tp", "edp_shard", "kv"; "-" without axes

}  // namespace lockstep::mesh
