// The grid of ranks: named axes, rank <-> coordinates, groups. Pure data; everything about "who with whom" derives from it.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mesh {

// Slowest first: tp varies fastest, pp slowest (Megatron-LM's order), so tp groups are neighbours on one node.
enum class Axis { kPp, kDpReplicate, kDpShard, kCp, kTp };
inline constexpr std::array<Axis, 5> kAxes = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
std::string_view axis_name(Axis axis);

// The axes over which data parallelism acts: they see different samples and sum their gradients.
inline constexpr std::array<Axis, 2> kDataAxes = {Axis::kDpReplicate, Axis::kDpShard};

// One number per axis: a degree or a coordinate.
class PerAxis {
 public:
  static PerAxis ones();
  int& operator[](Axis axis) { return values_[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return values_[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;

 private:
  std::array<int, kAxes.size()> values_{};
};

class Mesh {
 public:
  Mesh() : Mesh(PerAxis::ones()) {}                     // one rank
  explicit Mesh(const PerAxis& degrees);       // every degree >= 1, else InternalError: layouts are checked in config/
  static Mesh data_parallel(int dp);           // dp_replicate = dp, all other axes 1

  int world_size() const { return world_size_; }
  int degree(Axis axis) const { return degrees_[axis]; }
  int degree(std::span<const Axis> axes) const;  // product
  PerAxis coordinates(int rank) const;
  int rank(const PerAxis& coordinates) const;

  // The ranks that differ from `rank` only along `axes`, ascending; `rank` is one of them. A group of one for degree 1.
  std::vector<int> group(int rank, std::span<const Axis> axes) const;
  // Where `rank` stands in that group.
  int group_rank(int rank, std::span<const Axis> axes) const;

  // "pp1 dp_replicate2 tp0": only axes with a degree above 1; "-" for one rank.
  std::string describe(int rank) const;
  bool operator==(const Mesh&) const = default;

 private:
  PerAxis degrees_;
  int world_size_ = 1;
};

}  // namespace lockstep::mesh
