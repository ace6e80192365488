// Like test_closed_costs.h: a block, and the matrix products of all layers.
#pragma once

#include "lockstep/arch/test_closed_costs.h"

namespace lockstep::arch::closed {

inline std::vector<KeptPart> block_parts(const Sizes& s);

// y = x W^T, sums of `in` terms.
inline void linear(const Sizes& s, int64_t in, int64_t bytes_out, Memory& memory) {
  memory.take(bytes_out);
  memory.scratch(product_scratch(s, {.rows = s.tokens, .terms = in, .columns = 0, .weight = Weight::kRows}));
}

// dx = dy W of a weight [out, in].
inline void linear_backward_input(const Sizes& s, int64_t out, int64_t in, int64_t bytes_out, Memory& memory) {
  memory.take(bytes_out);
  memory.scratch(product_scratch(s, {.rows = s.tokens, .terms = out, .columns = in, .weight = Weight::kColumns}));
}

// The product is added straight into an fp32 gradient when the operands are fp32.
inline void linear_backward_weight(const Sizes& s, int64_t in, int64_t out, bool has_bias, Memory& memory) {
  if (has_bias) memory.scratch(pieces(s.tokens) * 4 * out);
  if (!s.fp32) memory.scratch(in * out * s.input.element_size + kPackingBytes);
}

// What nn/attention_cpu packs, per thread: of a head keys and values, backward their gradients too, and some blocks of 48
// rows and of scores.
struct AttentionScratch {
  int64_t sequences, blocks, scores;
};
inline constexpr AttentionScratch kAttentionForward{.sequences = 2, .blocks = 3, .scores = 2};
inline constexpr AttentionScratch kAttentionBackward{.sequences = 4, .blocks = 5, .scores = 2};

inline int64_t attention_scratch(const Sizes& s, const AttentionScratch& scratch) {
  const int64_t rows = scratch.sequences * rounded_up(s.input.seq_len, 48) + scratch.blocks * 48;
  return s.input.threads * 4 * (rows * rounded_up(s.model.head_size, 16) + scratch.scores * 48 * 48);
}

// Norms of query and key heads: what came in, copied, and a statistic a head. Nothing where the model has none.
inline int64_t head_norm_kept(const Sizes& s) {
  if (!s.model.qk_norm) return 0;
  const int64_t heads = s.model.heads + s.model.kv_heads;
  return s.activations(heads * s.model.head_size) + 4 * s.tokens * heads;
}

// One kind of heads after the other; the copies stay where backward comes.
inline void head_norm_forward(const Sizes& s, bool saved, Memory& memory) {
  if (!s.model.qk_norm) return;
  for (const int64_t heads : {s.model.heads, s.model.kv_heads}) {
    const int64_t values = s.activations(heads * s.model.head_size), statistics = 4 * s.tokens * heads;
    memory.take(values + statistics);
    memory.scratch(values);
    if (!saved) memory.drop(values + statistics);
  }
}

// The gradients, copied, stay for W; those of what came in go back to their place.
inline void head_norm_backward_input(const Sizes& s, Memory& memory) {
  if (!s.model.qk_norm) return;
  for (const int64_t heads : {s.model.heads, s.model.kv_heads}) {
    memory.take(s.activations(heads * s.model.head_size));
    memory.scratch(s.activations(heads * s.model.head_size));
  }
}

inline void head_norm_backward_weight(const Sizes& s, Memory& memory) {
  if (!s.model.qk_norm) return;
  memory.scratch(16 * 2 * 4 * s.model.head_size);
  memory.drop(head_norm_kept(s) + s.activations((s.model.heads + s.model.kv_heads) * s.model.head_size));
}

inline int64_t kept_by(Recompute choice, const Sizes& s) {
  int64_t bytes = 0;
  for (const KeptPart& part : block_parts(s)) bytes += part.kept_by(choice) ? part.bytes : 0;
  return bytes;
}

// The linear at the end of a half: with sequence parallelism all rows of its sum, of which this rank keeps its own.
inline void row_linear(const Sizes& s, int64_t in, Memory& memory) {
  linear(s, in, s.sequence ? s.whole : s.hidden, memory);
  if (s.sequence) memory.take(s.hidden), memory.scratch(s.scattered() - s.whole), memory.drop(s.whole);
}

// Until the first half's branch is there; `saved`: whether what backward needs stays.
inline void attend(const Sizes& s, bool saved, Memory& memory) {
  const auto unless_saved = [&](int64_t bytes) { memory.drop(saved ? 0 : bytes); };
  norm_forward(s, memory);
  unless_saved(s.statistics);
  memory.take(s.gathered());
  linear(s, s.model.hidden, s.qkv, memory);
  memory.drop(s.gathered());
  head_norm_forward(s, saved, memory);
  memory.take(s.q + s.logsumexp);
  memory.scratch(attention_scratch(s, kAttentionForward));
  unless_saved(s.logsumexp);
  row_linear(s, s.q_width, memory);  // becomes the sum after attention
  unless_saved(s.hidden + s.qkv + s.q);
  dropout_forward(s, memory);
  unless_saved(s.mask);
}

// Of the second half until the nonlinearity's output is there.
inline void rise(const Sizes& s, bool saved, Memory& memory) {
  norm_forward(s, memory);
  if (!saved) memory.drop(s.statistics);
  memory.take(s.gathered());
  linear(s, s.model.hidden, s.up, memory);
  memory.drop(s.gathered());
  memory.take(s.ffn);
  if (!saved) memory.drop(s.up);
}

inline int64_t block_forward_peak(const Sizes& s, bool saved) {
  Memory memory(s.hidden);  // x
  attend(s, saved, memory);
  rise(s, saved, memory);
  row_linear(s, s.model.ffn, memory);  // becomes the output
  if (!saved) memory.drop(s.hidden + s.ffn);
  dropout_forward(s, memory);
  return memory.peak();
}

// Block::recompute: forward up to the last linear, whose output's mask is drawn all the same.
inline int64_t recompute_peak(const Sizes& s) {
  Memory memory(s.hidden);
  attend(s, /*saved=*/true, memory);
  rise(s, /*saved=*/true, memory);
  memory.take(s.mask);
  return memory.peak();
}

// Block::restore.
inline int64_t restore_peak(const Sizes& s) {
  Memory memory(kept_by(Recompute::kSelective, s));
  const auto norm = [&] { norm_forward(s, memory), memory.drop(s.statistics); };
  norm();
  head_norm_forward(s, /*saved=*/true, memory);
  memory.take(s.mask);
  norm();
  memory.take(s.ffn + s.mask);
  return memory.peak();
}

// dx of the first linear of a half: with sequence parallelism it is summed into the rows here, and the unsummed one goes
// when the sum has come (finish).
inline void column_backward_input(const Sizes& s, int64_t out, Memory& memory) {
  linear_backward_input(s, out, s.model.hidden, s.sequence ? s.whole : s.hidden, memory);
  if (s.sequence) memory.take(s.hidden + s.scattered() - s.whole);
}

inline void finish(const Sizes& s, Memory& memory) { memory.drop(s.scattered()); }

// The end of a half, backwards: with sequence parallelism all rows of dy are gathered, and W keeps those.
inline void row_backward_input(const Sizes& s, Memory& memory) {
  dropout_backward(s, memory);
  memory.take(s.whole);
  memory.scratch(s.gathered() - s.whole);
}

// A half's dy without the dropped elements is a copy that only this half sees, unless W keeps it.
inline void drop_masked(const Sizes& s, Memory& memory) {
  if (s.sequence && s.mask > 0) memory.drop(s.hidden);
}

// Of the first linear's weight gradient, with sequence parallelism: all rows of x.
inline void gather_input(const Sizes& s, Memory& memory) { memory.take(s.gathered()); }

enum class Weights { kFollow, kLater };

// Until the gradient of the first linear's x is on its way.
inline void mlp_backward_input(const Sizes& s, Weights weights, Memory& memory) {
  row_backward_input(s, memory);
  linear_backward_input(s, s.model.hidden, s.model.ffn, s.ffn, memory);  // of the nonlinearity's output
  memory.drop(s.ffn);
  if (weights == Weights::kFollow) gather_input(s, memory);
  column_backward_input(s, s.up_width, memory);
  drop_masked(s, memory);
}

inline void attention_backward_input(const Sizes& s, Weights weights, Memory& memory) {
  row_backward_input(s, memory);
  linear_backward_input(s, s.model.hidden, s.q_width, s.q, memory);  // of mixed
  memory.scratch(attention_scratch(s, kAttentionBackward));  // dq, dk, dv take the place of q, k, v
  memory.drop(s.logsumexp);
  head_norm_backward_input(s, memory);
  memory.drop(s.q);
  if (weights == Weights::kFollow) gather_input(s, memory);
  column_backward_input(s, s.qkv_width, memory);
  drop_masked(s, memory);
}

// Its x: with sequence parallelism that of all rows takes the place of the part that was kept.
inline void column_backward_weight(const Sizes& s, int64_t out, bool has_bias, Memory& memory) {
  if (s.sequence) memory.drop(s.hidden);
  linear_backward_weight(s, s.model.hidden, out, has_bias, memory);
  memory.drop(s.sequence ? s.gathered() : s.hidden);
}

// The last linear takes the block's dy as it came.
inline bool keeps_dy(const Sizes& s) { return !s.sequence && s.mask == 0; }

// dy: what goes with it of a block's own, which in action B its caller holds.
inline void mlp_backward_weight(const Sizes& s, Weights weights, int64_t dy, Memory& memory) {
  const ModelConfig& m = s.model;
  linear_backward_weight(s, m.ffn, m.hidden, m.mlp_bias, memory);  // down
  memory.drop(s.ffn + (s.sequence ? s.whole : s.mask > 0 ? s.hidden : dy));
  if (weights == Weights::kLater) gather_input(s, memory);
  column_backward_weight(s, s.up_width, m.mlp_bias, memory);
  memory.drop(s.up);
}

inline void mlp_norm_backward_weight(const Sizes& s, Memory& memory) {
  norm_backward_weight(s, memory);
  memory.drop(2 * s.hidden + s.statistics);
}

inline void attention_backward_weight(const Sizes& s, Weights weights, Memory& memory) {
  const ModelConfig& m = s.model;
  linear_backward_weight(s, s.q_width, m.hidden, m.out_bias, memory);
  memory.drop(s.q + (s.sequence ? s.whole : s.hidden));
  head_norm_backward_weight(s, memory);
  if (weights == Weights::kLater) gather_input(s, memory);
  column_backward_weight(s, s.qkv_width, m.qkv_bias, memory);
  memory.drop(s.qkv);
}

inline void block_backward_input(const Sizes& s, Memory& memory) {
  mlp_backward_input(s, Weights::kLater, memory);
  finish(s, memory);
  norm_backward_input(s, memory);
  attention_backward_input(s, Weights::kLater, memory);
  finish(s, memory);
  norm_backward_input(s, memory);
  if (!keeps_dy(s)) memory.drop(s.hidden);  // the gradient between the halves; W of attention keeps it otherwise
}

inline void block_backward_weight(const Sizes& s, int64_t dy, Memory& memory) {
  mlp_backward_weight(s, Weights::kLater, dy, memory);
  mlp_norm_backward_weight(s, memory);
  attention_backward_weight(s, Weights::kLater, memory);
  norm_backward_weight(s, memory);
}

// The order of model::Block::backward where weight gradients run beside the communication.
inline void block_backward_overlapped(const Sizes& s, Memory& memory) {
  mlp_backward_input(s, Weights::kFollow, memory);
  mlp_backward_weight(s, Weights::kFollow, /*dy=*/0, memory);
  finish(s, memory);
  norm_backward_input(s, memory);
  attention_backward_input(s, Weights::kFollow, memory);
  mlp_norm_backward_weight(s, memory);
  attention_backward_weight(s, Weights::kFollow, memory);
  finish(s, memory);
  norm_backward_input(s, memory);
  norm_backward_weight(s, memory);
}

inline std::vector<KeptPart> block_parts(const Sizes& s) {
  const bool gated = s.model.gated_mlp();
  std::vector<KeptPart> parts = {
      {"input", s.hidden, Recompute::kFull},
      {"norm statistics", 2 * s.statistics, Recompute::kSelective},
      {"norm outputs", 2 * s.hidden, Recompute::kNone},
      {"q, k, v", s.qkv, Recompute::kSelective},
      {"q, k before their norms", head_norm_kept(s), Recompute::kNone},
      {"attention output", s.q, Recompute::kSelective},
      {"attention logsumexp", s.logsumexp, Recompute::kSelective},
      {"sum after attention", s.hidden, Recompute::kSelective},
      {gated ? "mlp gate and up" : "mlp up", s.up, Recompute::kSelective},
      {"mlp activation", s.ffn, Recompute::kNone},
      {"dropout masks", 2 * s.mask, Recompute::kNone},
  };
  std::erase_if(parts, [](const KeptPart& part) { return part.bytes == 0; });
  return parts;
}

inline void block_memory(const Sizes& s, LayerCost& cost) {
  const Recompute choice = s.input.recompute;
  const int64_t all = kept_by(Recompute::kNone, s);
  cost.kept = kept_by(choice, s);
  cost.restored = all - cost.kept;
  cost.output = s.hidden;
  cost.forward_workspace = block_forward_peak(s, choice != Recompute::kFull) - cost.kept - cost.output;
  if (choice == Recompute::kSelective) cost.recompute_workspace = restore_peak(s) - all;
  if (choice == Recompute::kFull) cost.recompute_workspace = recompute_peak(s) - all;
  const int64_t before = all + 2 * cost.output;  // with dy and dx
  Memory backward(all + cost.output);
  block_backward_input(s, backward);
  apart(backward, before, {.dx = cost.output, .dy = keeps_dy(s) ? 0 : cost.output}, cost);
  Memory weight(cost.held);
  block_backward_weight(s, keeps_dy(s) ? cost.output : 0, weight);
  cost.weight_workspace = weight.peak() - cost.held;
  if (s.input.tensor.size > 1 && s.input.overlap) {
    backward = Memory(all + cost.output);
    block_backward_overlapped(s, backward);
  } else {
    block_backward_weight(s, /*dy=*/0, backward);
  }
  cost.backward_workspace = backward.peak() - before;
}

// y = x W^T for all tokens, and its two gradients.
inline void add_linear(const std::string& name, const Sizes& s, int64_t in, int64_t out, LayerCost& cost) {
  cost.forward.push_back({.name = name, .m = s.tokens, .n = out, .k = in});
  cost.backward.push_back({.name = name + ".dx", .m = s.tokens, .n = in, .k = out});
  cost.backward.push_back({.name = name + ".dw", .m = out, .n = in, .k = s.tokens, .in_weight = true});
}

// Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
inline void add_attention_core(const Sizes& s, LayerCost& cost) {
  const int64_t seq = s.input.seq_len;
  const int64_t half = (seq + 1) / 2;  // causal: of the S keys a query sees half on average
  const auto product = [&](std::string name) {
    return Gemm{
        .name = std::move(name), .m = seq, .n = half, .k = s.model.head_size, .count = s.input.batch * s.model.heads};
  };
  cost.forward.push_back(product("scores"));
  cost.forward.push_back(product("mix"));
  for (const char* name : {"scores.again", "scores.dq", "scores.dk", "mix.dp", "mix.dv"})
    cost.backward.push_back(product(name));
}

inline void block_work(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  add_linear("qkv", s, m.hidden, s.qkv_width, cost);
  add_attention_core(s, cost);
  add_linear("out", s, s.q_width, m.hidden, cost);
  add_linear(m.gated_mlp() ? "gate_up" : "up", s, m.hidden, s.up_width, cost);
  add_linear("down", s, m.ffn, m.hidden, cost);
  const int64_t heads = s.activations((m.heads + m.kv_heads) * m.head_size);  // of queries and keys
  const int64_t rotary = (m.traits().learned_positions ? 0 : 2 * heads) + (m.qk_norm ? 6 * heads : 0);
  const int64_t norms_and_sums = 2 * (2 + 3) * s.hidden;
  cost.memory_traffic = norms_and_sums + rotary + s.qkv + s.q + s.up + s.ffn + 4 * s.mask;
  if (s.input.recompute == Recompute::kFull) {
    cost.recompute.assign(cost.forward.begin(), cost.forward.end() - 1);  // not the last one, which makes the output
    cost.recompute_traffic = cost.memory_traffic - 3 * s.hidden - s.mask;  // nor the sum behind it
  } else if (s.input.recompute == Recompute::kSelective) {
    cost.recompute_traffic = 2 * 2 * s.hidden + (m.qk_norm ? rotary : 0) + s.up + s.ffn + 2 * s.mask;
  }
}

// All three products run in I: see nn/head.h.
inline void head_work(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  cost.backward = {{.name = "logits", .m = s.tokens, .n = m.vocab_size, .k = m.hidden},
                   {.name = "logits.dx", .m = s.tokens, .n = m.hidden, .k = m.vocab_size},
                   {.name = "logits.dw", .m = m.vocab_size, .n = m.hidden, .k = s.tokens}};
  const int64_t passes = 2;  // softmax cross-entropy: read and write
  cost.memory_traffic = 4 * s.hidden + passes * s.tokens * m.vocab_size * s.input.element_size;
}

inline LayerCost layer_cost(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  const Sizes sizes(model, input);
  LayerCost cost;
  switch (layer.kind) {
    case LayerKind::kEmbedding:
      embedding_memory(sizes, cost);
      cost.memory_traffic = (model.traits().learned_positions ? 3 : 2) * sizes.hidden;
      break;
    case LayerKind::kBlock:
      block_memory(sizes, cost);
      block_work(sizes, cost);
      break;
    case LayerKind::kHead:
      head_memory(sizes, cost);
      head_work(sizes, cost);
      break;
  }
  return cost;
}

}  // namespace lockstep::arch::closed
