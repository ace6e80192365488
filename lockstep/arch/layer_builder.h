// What the descriptions of all layers are put together from: for arch/ and for kinds of branches (branch_kind.h). Each function
// stands for the one of the same name in nn/ or parallel/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/layer_sizes.h"

namespace lockstep::arch {

inline constexpr PhaseSet kForwards = Phase::kForward | Phase::kEvaluate | Phase::kRecompute;
inline constexpr PhaseSet kAgain = kForwards | Phase::kRestore;  // of what selective recomputation computes again
inline constexpr PhaseSet kLose = Phase::kEvaluate;              // where what would be kept is dropped
inline constexpr PhaseSet kInputs = Phase::kInput | Phase::kBackward | Phase::kOverlapped;
inline constexpr PhaseSet kWeights = Phase::kWeight | Phase::kBackward | Phase::kOverlapped;

// Value::kept_as and most.
struct Kept {
  std::string_view as{};
  Recompute most = Recompute::kNone;
};

class LayerBuilder {
 public:
  // `input` outlives the builder.
  LayerBuilder(const ModelConfig& model, const CostInput& input) : s(model, input) {
    d.values.reserve(48), d.products.reserve(16), d.calls.reserve(16), d.steps.reserve(160);
  }
  LayerBuilder(const LayerBuilder&) = delete;
  LayerBuilder& operator=(const LayerBuilder&) = delete;

  const Sizes s;
  LayerDescription d;

  // kNoValue where it would have no bytes. Taking and dropping that is nothing.
  int value(const Value& value) {
    if (value.bytes() == 0) return kNoValue;
    d.values.push_back(value);
    return static_cast<int>(d.values.size()) - 1;
  }
  int64_t bytes(int value) const { return value == kNoValue ? 0 : d.values[static_cast<size_t>(value)].bytes(); }
  // Of all tokens.
  int activations(int64_t width, Kept kept = {}) { return matrix(s.tokens, width, kept); }
  int activations_of(int64_t rows, int64_t width) { return matrix(rows, width); }
  // Of this rank's rows, as wide as the model.
  int hidden(Kept kept = {}) { return matrix(s.rows, s.model.hidden, kept); }
  // With sequence parallelism: all rows, gathered or to be scattered.
  int whole() { return s.sequence ? matrix(s.rows * s.input.tensor.size, s.model.hidden) : kNoValue; }
  int mask(Kept kept) {
    if (s.mask == 0) return kNoValue;
    return value({.rows = s.rows, .columns = s.model.hidden, .element_size = 1, .kept_as = kept.as, .most = kept.most});
  }
  int statistics(Kept kept = {}) {
    const int64_t numbers = s.model.traits().layer_norm ? 2 : 1;  // mean and rstd; RMSNorm: rstd
    return value({.rows = s.rows, .columns = numbers, .element_size = 4, .kept_as = kept.as, .most = kept.most});
  }

  void take(PhaseSet phases, int value) {
    if (value != kNoValue) d.steps.push_back({.what = Step::What::kTake, .phases = phases, .index = value});
  }
  void drop(PhaseSet phases, int value) {
    if (value != kNoValue) d.steps.push_back({.what = Step::What::kDrop, .phases = phases, .index = value});
  }
  void kernel(PhaseSet phases, int64_t scratch, int64_t traffic = 0) {
    d.steps.push_back({.what = Step::What::kKernel, .phases = phases, .scratch = scratch, .traffic = traffic});
  }
  void product(PhaseSet phases, const Product& product, int64_t scratch = 0) {
    d.products.push_back(product);
    const int index = static_cast<int>(d.products.size()) - 1;
    d.steps.push_back({.what = Step::What::kProduct, .phases = phases, .index = index, .scratch = scratch});
  }

  // Collectives: kNoCall for one rank, and of gathering without sequence parallelism.
  static constexpr int kNoCall = -1;
  int call(const LayerCall& call) {
    if (s.input.tensor.size == 1) return kNoCall;
    d.calls.push_back(call);
    return static_cast<int>(d.calls.size()) - 1;
  }
  int gather_rows(const std::string& part, LayerCall::Slot slot) {
    if (!s.sequence) return kNoCall;
    return call({.part = part, .slot = slot, .what = LayerCall::What::kGather, .numel = padded_numel(),
                 .element_size = s.input.element_size});
  }
  // The sum over the ranks, of which each takes its rows or all.
  int reduce_output(const std::string& part, LayerCall::Slot slot) {
    return call({.part = part,
                 .slot = slot,
                 .what = s.sequence ? LayerCall::What::kReduceScatter : LayerCall::What::kAllReduce,
                 .numel = s.sequence ? padded_numel() : s.tokens * s.model.hidden,
                 .element_size = s.input.element_size});
  }
  void start(PhaseSet phases, int call, int64_t scratch = 0) {
    if (call == kNoCall) return;
    d.steps.push_back({.what = Step::What::kStart, .phases = phases, .index = call, .scratch = scratch});
  }
  void join(PhaseSet phases, int call) {
    if (call != kNoCall) d.steps.push_back({.what = Step::What::kJoin, .phases = phases, .index = call});
  }
  void communicate(PhaseSet phases, int call, int64_t scratch) { start(phases, call, scratch), join(phases, call); }
  // Rows that are no multiple of the ranks are copied to buffers of equal parts (parallel/tensor/group.cpp).
  int64_t copy_to_gather() const { return s.uneven ? s.hidden : 0; }
  int64_t copy_to_scatter() const { return s.uneven ? s.whole : 0; }

  struct Norm {
    int x = kNoValue, y = kNoValue, statistics = kNoValue, dy = kNoValue;
  };
  // `lose`: where the statistics are of no more use.
  void norm_forward(PhaseSet phases, PhaseSet lose, const Norm& norm) {
    take(phases, norm.y), take(phases, norm.statistics);
    kernel(phases, 0, 2 * s.hidden);
    drop(lose, norm.statistics);
  }
  void norm_backward_weight(const Norm& norm) {
    kernel(kWeights, row_sum_scratch(s.rows, 2 * s.model.hidden));
    drop(kWeights, norm.x), drop(kWeights, norm.dy), drop(kWeights, norm.statistics);
  }

  // y = x W^T of all tokens, and its gradients. W [out, in].
  struct Linear {
    std::string_view name{};
    int64_t in = 0, out = 0;
    bool has_bias = false;
  };
  void linear(PhaseSet phases, const Linear& l) {
    product(phases, {.name = l.name, .m = s.tokens, .n = l.out, .k = l.in},
            product_scratch(s.input, {.rows = s.tokens, .terms = l.in, .columns = 0, .weight = Weight::kRows}));
  }
  void linear_backward_input(const Linear& l) {
    product(kInputs, {.name = l.name, .role = Product::Role::kInputGradient, .m = s.tokens, .n = l.in, .k = l.out},
            product_scratch(s.input, {.rows = s.tokens, .terms = l.out, .columns = l.in, .weight = Weight::kColumns}));
  }
  void linear_backward_weight(const Linear& l) {
    if (l.has_bias) kernel(kWeights, row_sum_scratch(s.tokens, l.out));
    product(kWeights, {.name = l.name, .role = Product::Role::kWeightGradient, .m = l.out, .n = l.in, .k = s.tokens},
            weight_gradient_scratch(s.input, l.in, l.out));
  }

  // The mask, and for the product a copy of it in the dtype of x. `draw`: where no x is masked too.
  void dropout_forward(PhaseSet draw, PhaseSet phases, int mask, int64_t traffic) {
    if (mask == kNoValue) return;
    take(draw, mask);
    kernel(draw, 0, traffic);
    kernel(phases, s.hidden, traffic);
  }
  // A masked copy of dy, which it returns; nothing without dropout. Releases the mask.
  int dropout_backward(int mask) {
    if (mask == kNoValue) return kNoValue;
    const int masked = hidden();
    take(kInputs, masked);
    kernel(kInputs, s.hidden);
    drop(kInputs, mask);
    return masked;
  }

 private:
  int matrix(int64_t rows, int64_t columns, Kept kept = {}) {
    return value({.rows = rows, .columns = columns, .element_size = s.input.element_size, .kept_as = kept.as, .most = kept.most});
  }
  int64_t padded_numel() const { return s.rows * s.input.tensor.size * s.model.hidden; }
};

LayerDescription describe_embedding(const ModelConfig& model, const CostInput& input);
// At least one branch.
LayerDescription describe_block(const ModelConfig& model, const BlockSpec& branches, const CostInput& input);
LayerDescription describe_head(const ModelConfig& model, const CostInput& input);

}  // namespace lockstep::arch
