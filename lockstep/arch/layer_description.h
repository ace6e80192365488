// What a layer is, said once: its parameters, its tensors, and what each of its actions does, step by step, on one rank.
// The parameter table, FLOPs, bytes, calls over tp and the drawing of a block are folds over it; tests hold the running
// layers of nn/, parallel/ and model/ against it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/cost.h"

namespace lockstep::arch {

// When a step takes place.
enum class Phase {
  kForward,     // F: what no step drops is kept, or is the output
  kEvaluate,    // F that keeps nothing but its input: of an evaluation, and where full recomputation comes
  kRecompute,   // RECOMPUTE of full recomputation
  kRestore,     // RECOMPUTE of selective recomputation
  kInput,       // I
  kWeight,      // W; it leaves nothing
  kBackward,    // B as I and then W; unlike W it leaves dy to its caller
  kOverlapped,  // B whose weight gradients run beside the communication over tp: its steps in the order of the list
};

class PhaseSet {
 public:
  constexpr PhaseSet() = default;
  constexpr PhaseSet(Phase phase) : bits_(1U << static_cast<unsigned>(phase)) {}
  constexpr bool has(Phase phase) const { return (bits_ & PhaseSet(phase).bits_) != 0; }
  friend constexpr PhaseSet operator|(PhaseSet a, PhaseSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  unsigned bits_ = 0;
};
constexpr PhaseSet operator|(Phase a, Phase b) { return PhaseSet(a) | PhaseSet(b); }

// A tensor of this rank: [rows, columns].
struct Value {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t element_size = 0;         // bytes
  std::string_view kept_as{};       // the line of `show memory` that counts it; empty: it lives within an action, or from I to W
  Recompute most = Recompute::kNone;  // where kept_as is set: kept by this choice and by those that compute less again
  int64_t bytes() const { return rows * columns * element_size; }
};

// [m, k] times [k, n], `count` times.
struct Product {
  enum class Role { kOutput, kInputGradient, kWeightGradient };
  std::string_view name{};  // of the linear, or of the product itself
  Role role = Role::kOutput;
  int64_t m = 0, n = 0, k = 0;
  int64_t count = 1;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(count);
  }
};

// A collective over tp. Owner (the layer), part and slot are its id (program/call.h).
struct LayerCall {
  enum class Slot {
    kForward,   // of what comes in, or of what the part makes
    kBackward,  // of its gradient
    kGather,    // of what came in, for the weight gradient
    kSoftmax,   // of maxima and sums
  };
  enum class What { kGather, kReduceScatter, kAllReduce };
  std::string part{};  // "attention.qkv"; empty: the whole layer
  Slot slot = Slot::kForward;
  What what = What::kAllReduce;
  int64_t numel = 0;         // of the full buffer, padding included
  int64_t element_size = 0;  // bytes
  int64_t at_once = 0;       // > 0: several calls, of so many elements and the rest
};

struct Step {
  enum class What {
    kProduct,  // products[index]
    kKernel,   // pointwise work, norms, attention, copies
    kStart,    // calls[index] begins ...
    kJoin,     // ... and its result is there
    kTake,     // values[index] is allocated
    kDrop,     // and released
  };
  What what = What::kKernel;
  PhaseSet phases{};
  int index = -1;
  int64_t scratch = 0;  // bytes beside its operands while it runs (layer_sizes.h)
  int64_t traffic = 0;  // bytes that pointwise work reads and writes, as far as they are counted
};

inline constexpr int kNoValue = -1;

struct LayerDescription {
  BlockSpec branches{};        // of a block
  std::vector<Value> values{};     // those that are kept stand in the order of `show memory`
  std::vector<Product> products{};
  std::vector<LayerCall> calls{};  // part by part, in the order of the forward pass; none for one rank
  std::vector<Step> steps{};
  int input = kNoValue;  // x, kept in every case, and as large as dx; the embedding has none
  int output = kNoValue;  // as large as dy; the head has none
  // Some steps take place in it. An embedding and a head are not computed again.
  bool has(Phase phase) const;
};

// Of `input` all but the recomputation and overlap, which choose among phases.
LayerDescription describe_layer(const ModelConfig& model, const LayerSpec& layer, const CostInput& input);

// Its rows of the parameter table, not yet placed, in the order of the forward pass; `layer` with its name and its index of the
// layer table.
std::vector<ParamSpec> layer_parameters(const ModelConfig& model, const LayerSpec& layer);

// The branches of the block that is this layer. ConfigError LS1124 where they contradict each other.
const BlockSpec& block_branches(const ModelConfig& model, int layer);
// Equal for layers of equal parts: embedding, head, and blocks of one list of branches.
int layer_pattern(const ModelConfig& model, const LayerSpec& layer);

}  // namespace lockstep::arch
