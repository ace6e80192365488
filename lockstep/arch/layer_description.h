// What a layer is, said once: its parameters, its tensors, and what each of its actions does, step by step, on one rank.
// The parameter table, FLOPs, bytes, calls over tp and over the ranks that share experts, and the drawing of a block are folds over it; tests hold the running
// layers of nn/, parallel/ and model/ against it.
#pragma once

#include <cstddef>
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

struct PhaseSet {
  constexpr PhaseSet() = default;
  constexpr PhaseSet(Phase phase) : bits(1U << static_cast<unsigned>(phase)) {}
  constexpr bool has(Phase phase) const { return (bits & PhaseSet(phase).bits) != 0; }
  unsigned bits = 0;
};
constexpr PhaseSet operator|(PhaseSet a, PhaseSet b) {
  a.bits |= b.bits;
  return a;
}
constexpr PhaseSet operator|(Phase a, Phase b) { return PhaseSet(a) | b; }  // of two enumerators the one above is no candidate

struct Kept {
  std::string_view as{};              // the line of `show memory` that counts it; empty: it lives within an action, or from I to W
  Recompute most = Recompute::kNone;  // where `as` is set: kept by this choice and by those that compute less again
};

// A tensor of this rank.
struct Value {
  int64_t bytes = 0;
  Kept kept{};
  bool kept_by(Recompute choice) const { return !kept.as.empty() && choice <= kept.most; }
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

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kReduce, kGather, kScatter, kSend, kRecv, kBarrier,
                        kShift,       // each rank's to the next one, of the one before it
                        kShiftBack };  // to the one before it, of the next one

// Which of the calls of one layer, part or purpose.
enum class CallPhase : uint8_t {
  kNone,
  kForward,   // of what comes in, or of what the part makes
  kBackward,  // of its gradient
  kGather,    // the input once more, for the weight gradient
  kSoftmax,   // what the ranks of a cut vocabulary know of each row
  kLogits,    // generation
  kSize,      // how much the call of the same id that follows carries
};

// Over which ranks a layer communicates.
enum class CallGroup : uint8_t {
  kTensor,   // tp
  kExperts,  // those that share the experts of a layer, ep x etp
  kExpertNodes,  // of them, those of equal place on the nodes of a hierarchical dispatcher
  kExpertNode,   // and those of one node
  kContext,      // cp
  kContextInner,  // of context 2d, those that exchange heads for tokens
  kContextOuter,  // and those that are a ring
};

// A collective of a layer. Owner (the layer), part and phase are its id (program/call.h).
struct LayerCall {
  std::string part{};  // "attention.qkv"; empty: the whole layer
  CallPhase phase = CallPhase::kForward;
  Collective collective = Collective::kAllReduce;
  int64_t numel = 0;         // of the full buffer, padding included
  int64_t element_size = 0;  // bytes
  int64_t at_once = 0;       // > 0: several calls, of so many elements and the rest
  CallGroup over = CallGroup::kTensor;
  int64_t rounds = 1;         // made so often ...
  bool turns_with_next = false;  // ... in turns with the next one, which has as many
  // The tokens decide how much each rank sends: numel is what it would be if all experts got as many.
  bool at_run_time = false;
  int64_t most = 0;        // numel of such a call at most, on any rank
  bool in_rounds = false;  // beyond moe.imbalance_limit it is made several times, each of at most `most`
  bool direct = false;  // each rank with every other, what is summed in the order of ranks, whatever its size
};

// Rows of a branch of experts, or their gradients, on their way: what a layer may be divided at.
enum class RowsWay { kNone, kToExperts, kBack };
RowsWay rows_way(const LayerCall& call);

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
  int64_t scratch = 0;  // bytes beside its operands while it runs (layer_builder.h)
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
  int64_t bytes(int value) const { return value == kNoValue ? 0 : values[static_cast<size_t>(value)].bytes; }
};

// Of a block its own window is the model's (model_of_layer). Of `input` all but the recomputation and overlap, which choose among phases.
LayerDescription describe_layer(const ModelConfig& model, const LayerSpec& layer, const CostInput& input);

// What the Saved of the block that is `layer` holds, a value for each line of `show memory`; `input.recompute` plays no part.
std::vector<Value> block_kept_parts(const ModelConfig& model, const CostInput& input, int layer = 1);

// Its rows of the parameter table, not yet placed, in the order of the forward pass; `layer` with its name and its index of the
// layer table.
std::vector<ParamSpec> layer_parameters(const ModelConfig& model, const LayerSpec& layer);
// The same with the rows of these experts alone.
std::vector<ParamSpec> layer_parameters(const ModelConfig& model, const LayerSpec& layer, mesh::Range experts);

// The branches of the block that is this layer; in a model with experts they stand where the MLP of a block that is not dense would, and
// latent attention where attention would.
// ConfigError LS1124 where they contradict each other.
BlockSpec block_branches(const ModelConfig& model, int layer);
// The block has experts: it is not dense, and its list has an MLP for which they stand.
bool is_expert_block(const ModelConfig& model, int layer);
// Of its attention; of a block without one ModelConfig::sliding_window.
int64_t window_of_layer(const ModelConfig& model, int layer);
// The model with that window for all: what the costs, spans and plans of the layer's attention are made of.
ModelConfig model_of_layer(const ModelConfig& model, int layer);
// Equal for layers of equal parts: embedding, head, and blocks of equal lists of branches with an MLP, or with experts for it.
int layer_pattern(const ModelConfig& model, const LayerSpec& layer);
// Of each pattern of blocks the first layer, ascending.
std::vector<int> first_blocks(const ModelConfig& model);

}  // namespace lockstep::arch
