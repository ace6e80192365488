// What the descriptions of all layers are put together from: for arch/ and for kinds of branches (branch_kind.h). Each function
// stands for the one of the same name in nn/ or parallel/. What a kernel takes beside its operands while it runs is in bytes: of our
// own kernels by their code, of a library's by measurement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_description.h"

namespace lockstep::arch {

inline constexpr PhaseSet kForwards = Phase::kForward | Phase::kEvaluate | Phase::kRecompute;
inline constexpr PhaseSet kAgain = kForwards | Phase::kRestore;  // of what selective recomputation computes again
inline constexpr PhaseSet kLose = Phase::kEvaluate;              // where what would be kept is dropped
inline constexpr PhaseSet kInputs = Phase::kInput | Phase::kBackward | Phase::kOverlapped;
inline constexpr PhaseSet kWeights = Phase::kWeight | Phase::kBackward | Phase::kOverlapped;

// Of one microbatch of one layer.
struct Sizes {
  Sizes(const ModelConfig& m, const CostInput& in) : model(part_of(m, in.tensor)), input(in) {}

  // The model whose layers are what this rank holds of them.
  static ModelConfig part_of(ModelConfig m, const TensorShard& shard) {
    m.heads /= shard.size;
    m.kv_heads = std::max<int64_t>(1, m.kv_heads / shard.size);
    m.ffn = mesh::shard_range(m.ffn, shard.size, shard.rank).size();
    m.vocab_size = mesh::shard_range(m.vocab_size, shard.size, shard.rank).size();
    return m;
  }
  int64_t activations(int64_t width) const { return tokens * width * input.element_size; }  // bytes

  const ModelConfig model;
  const CostInput& input;
  const int64_t length = input.context.tokens_here(input.seq_len);  // T: S, or what this rank of cp has of it
  const int64_t tokens = input.batch * length;  // M = B T
  const bool sequence = input.tensor.size > 1 && input.tensor.sequence_parallel;  // norms, dropout and sums act on `rows` of them
  const int64_t rows = sequence ? mesh::padded_part(tokens, input.tensor.size) : tokens;  // the last ranks may have fewer, in
                                                                                          // buffers of so many
  const bool fp32 = input.element_size == 4;
  const int64_t hidden = rows * model.hidden * input.element_size;  // bytes of the rows here
  const int64_t whole = sequence ? hidden * input.tensor.size : 0;  // with sequence parallelism of all, gathered or to be scattered
  const bool uneven = sequence && tokens % input.tensor.size != 0;  // they are copied to equal parts for that (parallel/tensor/group.cpp)
  const int64_t mask = model.dropout > 0 ? rows * model.hidden : 0;  // bytes
};

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Packing areas of a bf16 product (oneDNN), at least.
inline constexpr int64_t kPackingBytes = 128 * 1024;

// Of nn::multiply of [rows, terms] and a weight: what oneDNN packs, by measurement on AVX2 and AVX-512 with bf16 and at most this; with AMX bf16 products
// pack other sizes, some tens to hundreds of KiB away. Each thread
// packs 64 columns of the weight, up to 1024 terms at a time, where it lies as rows, each of a result's column (y = x W^T), or its
// `columns` (dx = dy W; 0: rows) are a power of two apart. One row and, of rows, a few (nn/gemm_rows.h) go without.
inline int64_t product_scratch(const CostInput& input, int64_t rows, int64_t terms, int64_t columns = 0) {
  constexpr int64_t kColumns = 64, kMostTerms = 1024, kFewRows = 16, kFarApart = 512;
  if (input.element_size != 4) {
    constexpr int64_t kResult = 4 * kColumns * 256 + 1024;  // in fp32, of a block of rows
    return std::max(kPackingBytes, input.threads * (2 * kColumns * std::min(kMostTerms, rounded_up(terms, 32)) + kResult));
  }
  constexpr int64_t kBatch = 640, kOnce = 384;  // lists of blocks
  const bool as_rows = columns == 0, far_apart = columns >= kFarApart && (columns & (columns - 1)) == 0;
  if (rows <= (as_rows ? kFewRows : 1)) return 0;
  const int64_t packed = as_rows || far_apart ? 4 * kColumns * std::min(kMostTerms, rounded_up(terms, 16)) : 0;
  return input.threads * (packed + kBatch) + kOnce;
}

// Of nn::accumulate_matmul into [out, in]: straight into an fp32 gradient where the operands are fp32.
inline int64_t weight_gradient_scratch(const CostInput& input, int64_t in, int64_t out) {
  return input.element_size == 4 ? 0 : in * out * input.element_size + kPackingBytes;
}

// Sums over rows of [rows, columns] are taken in some pieces first, fp32 (nn/norm_cpu.cpp, nn/accumulate_cpu.cpp).
inline int64_t row_sum_scratch(int64_t rows, int64_t columns) { return std::min<int64_t>(16, rows) * 4 * columns; }

// What nn/attention_cpu packs, per thread: of a head as `width` as its keys or values `sequences` of `keys` tokens (keys and values,
// backward their gradients too), some `blocks` of 48 rows, and two of scores.
struct AttentionPacking {
  int64_t sequences = 0, blocks = 0, keys = 0;
};
inline int64_t attention_scratch(const Sizes& s, int64_t width, const AttentionPacking& packed) {
  const int64_t rows = packed.sequences * rounded_up(packed.keys, 48) + packed.blocks * 48;
  return s.input.threads * 4 * (rows * rounded_up(width, 16) + 2 * 48 * 48);
}

class LayerBuilder {
 public:
  // `input` outlives the builder.
  LayerBuilder(const ModelConfig& model, const CostInput& input) : s(model, input) {
    d.values.reserve(64), d.products.reserve(24), d.calls.reserve(20), d.steps.reserve(200);
  }
  LayerBuilder(const LayerBuilder&) = delete;
  LayerBuilder& operator=(const LayerBuilder&) = delete;

  const Sizes s;
  LayerDescription d;

  // kNoValue where it would have no bytes. Taking and dropping that is nothing.
  int value(int64_t bytes, Kept kept = {}) {
    if (bytes == 0) return kNoValue;
    d.values.push_back({.bytes = bytes, .kept = kept});
    return static_cast<int>(d.values.size()) - 1;
  }
  int64_t bytes(int value) const { return d.bytes(value); }
  // Of all tokens.
  int activations(int64_t width, Kept kept = {}) { return value(s.activations(width), kept); }
  // Of this rank's rows, as wide as the model.
  int hidden(Kept kept = {}) { return value(s.hidden, kept); }
  int whole() { return value(s.whole); }
  int mask(Kept kept) { return value(s.mask, kept); }
  int statistics(Kept kept = {}) {
    const int64_t numbers = s.model.traits().layer_norm ? 2 : 1;  // mean and rstd; RMSNorm: rstd
    return value(4 * s.rows * numbers, kept);
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
    if (ranks_of(call.over) == 1) return kNoCall;
    d.calls.push_back(call);
    return static_cast<int>(d.calls.size()) - 1;
  }
  int gather_rows(const std::string& part, CallPhase phase) {
    if (!s.sequence) return kNoCall;
    return call({.part = part, .phase = phase, .collective = Collective::kAllGather, .numel = padded_numel(),
                 .element_size = s.input.element_size});
  }
  // The sum over the ranks, of which each takes its rows or all.
  int reduce_output(const std::string& part, CallPhase phase) {
    return call({.part = part,
                 .phase = phase,
                 .collective = s.sequence ? Collective::kReduceScatter : Collective::kAllReduce,
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
            product_scratch(s.input, s.tokens, l.in));
  }
  void linear_backward_input(const Linear& l) {
    product(kInputs, {.name = l.name, .role = Product::Role::kInputGradient, .m = s.tokens, .n = l.in, .k = l.out},
            product_scratch(s.input, s.tokens, l.out, l.in));
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

  int ranks_of(CallGroup group) const {
    const int experts = s.input.tensor.experts.ep * s.input.tensor.experts.etp;
    switch (group) {
      case CallGroup::kTensor:
        return s.input.tensor.size;
      case CallGroup::kExperts:
        return experts;
      case CallGroup::kExpertNodes:
        return experts / s.input.node_ranks;
      case CallGroup::kExpertNode:
        return s.input.node_ranks;
      case CallGroup::kContext:
        return s.input.context.ranks;
      case CallGroup::kContextInner:
        return s.input.context.inner;
      case CallGroup::kContextOuter:
        return s.input.context.ranks / s.input.context.inner;
    }
    return 1;
  }

 private:
  int64_t padded_numel() const { return s.rows * s.input.tensor.size * s.model.hidden; }
};

LayerDescription describe_embedding(const ModelConfig& model, const CostInput& input);
LayerDescription describe_head(const ModelConfig& model, const CostInput& input);

}  // namespace lockstep::arch
