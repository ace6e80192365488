#include "lockstep/arch/cost.h"

#include <algorithm>

#include "lockstep/arch/cost_sizes.h"

namespace lockstep::arch {
namespace {

// y = x W^T for all tokens, and its two gradients.
void add_linear(const std::string& name, const Sizes& s, int64_t in, int64_t out, LayerCost& cost) {
  cost.forward.push_back({.name = name, .m = s.tokens, .n = out, .k = in});
  cost.backward.push_back({.name = name + ".dx", .m = s.tokens, .n = in, .k = out});
  cost.backward.push_back({.name = name + ".dw", .m = out, .n = in, .k = s.tokens, .in_weight = true});
}

// Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
void add_attention_core(const Sizes& s, LayerCost& cost) {
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

void block_work(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  add_linear("qkv", s, m.hidden, s.qkv_width, cost);
  add_attention_core(s, cost);
  add_linear("out", s, s.q_width, m.hidden, cost);
  add_linear(m.traits().gated_mlp ? "gate_up" : "up", s, m.hidden, s.up_width, cost);
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
void head_work(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  cost.backward = {{.name = "logits", .m = s.tokens, .n = m.vocab_size, .k = m.hidden},
                   {.name = "logits.dx", .m = s.tokens, .n = m.hidden, .k = m.vocab_size},
                   {.name = "logits.dw", .m = m.vocab_size, .n = m.hidden, .k = s.tokens}};
  const int64_t passes = 2;  // softmax cross-entropy: read and write
  cost.memory_traffic = 4 * s.hidden + passes * s.tokens * m.vocab_size * s.input.element_size;
}

double sum_flops(const std::vector<Gemm>& gemms) {
  double sum = 0;
  for (const Gemm& gemm : gemms) sum += gemm.flops();
  return sum;
}

}  // namespace

double LayerCost::forward_flops() const {
  return sum_flops(forward);
}
double LayerCost::backward_flops() const {
  return sum_flops(backward);
}

double LayerCost::weight_flops() const {
  double sum = 0;
  for (const Gemm& gemm : backward)
    if (gemm.in_weight) sum += gemm.flops();
  return sum;
}

double LayerCost::input_flops() const {
  return backward_flops() - weight_flops();
}

double LayerCost::recompute_flops() const {
  return sum_flops(recompute);
}

std::vector<KeptPart> block_kept_parts(const ModelConfig& model, const CostInput& input) {
  return block_parts(Sizes(model, input));
}

int64_t head_chunk_rows(int64_t vocab_size) {
  return std::max<int64_t>(256, 16 * 1024 * 1024 / (4 * vocab_size));
}

LayerCost layer_cost(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
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

double model_flops_per_token(const ModelConfig& model, int64_t seq_len, bool causal) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double hidden = number(model.hidden);
  const double q_width = number(model.heads * model.head_size);
  const double kv_width = number(model.kv_heads * model.head_size);
  const double projections = hidden * (2 * q_width + 2 * kv_width);
  const double core = 2 * q_width * number(seq_len) * (causal ? 0.5 : 1);
  const double matrices = model.traits().gated_mlp ? 3 : 2;
  const double mlp = matrices * hidden * number(model.ffn);
  return 6 * (number(model.layers) * (projections + core + mlp) + hidden * number(model.vocab_size));
}

}  // namespace lockstep::arch
