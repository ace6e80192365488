#include "lockstep/arch/cost.h"

#include <algorithm>

namespace lockstep::arch {
namespace {

// Bytes alive while a layer runs, in the order in which the code of nn/ and model/ allocates and releases.
class Memory {
 public:
  explicit Memory(int64_t now) : now_(now), peak_(now) {}
  void take(int64_t bytes) { peak_ = std::max(peak_, now_ += bytes); }
  void drop(int64_t bytes) { now_ -= bytes; }
  void scratch(int64_t bytes) { take(bytes), drop(bytes); }
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_;
  int64_t peak_;
};

// The sizes of one microbatch of one layer, in bytes where not said otherwise.
struct Sizes {
  Sizes(const ModelConfig& m, const CostInput& in)
      : model(m),
        input(in),
        tokens(in.batch * in.seq_len),
        fp32(in.element_size == 4),
        q_width(m.heads * m.head_size),
        qkv_width(q_width + 2 * m.kv_heads * m.head_size),
        up_width(m.traits().gated_mlp ? 2 * m.ffn : m.ffn),
        hidden(activations(m.hidden)),
        q(activations(q_width)),
        qkv(activations(qkv_width)),
        up(activations(up_width)),
        ffn(activations(m.ffn)),
        logsumexp(4 * tokens * m.heads),
        statistics((m.traits().layer_norm ? 2 : 1) * 4 * tokens),  // LayerNorm: mean and rstd in fp32; RMSNorm: rstd
        mask(m.dropout > 0 ? tokens * m.hidden : 0) {}

  int64_t activations(int64_t width) const { return tokens * width * input.element_size; }
  int64_t hidden_fp32() const { return 4 * tokens * model.hidden; }

  const ModelConfig& model;
  const CostInput& input;
  int64_t tokens;  // M = B S
  bool fp32;
  int64_t q_width;    // elements a token
  int64_t qkv_width;  // elements a token
  int64_t up_width;   // elements a token
  int64_t hidden;
  int64_t q;
  int64_t qkv;
  int64_t up;
  int64_t ffn;
  int64_t logsumexp;
  int64_t statistics;
  int64_t mask;  // 0 without dropout
};

// ---- Memory. Each function stands for the one of the same name in nn/.

void norm_forward(const Sizes& s, Memory& memory) {
  memory.take(s.hidden + s.statistics);
}

// Leaves dx; the statistics and both operands stay for W.
void norm_backward_input(const Sizes& s, Memory& memory) {
  memory.take(s.hidden);
}

// Sums over rows are taken in this many pieces first (nn/norm_cpu.cpp, nn/accumulate_cpu.cpp).
int64_t pieces(const Sizes& s) { return std::min<int64_t>(16, s.tokens); }

void norm_backward_weight(const Sizes& s, Memory& memory) { memory.scratch(pieces(s) * 2 * 4 * s.model.hidden); }

// Packing areas of a bf16 product (oneDNN): bounded, whatever the sizes.
constexpr int64_t kPackingBytes = 128 * 1024;

// y = x W^T, sums of `in` terms. An fp32 one (nn/gemm.cpp) packs 64 columns of the weight at a time.
void linear(const Sizes& s, int64_t in, int64_t bytes_out, Memory& memory) {
  memory.take(bytes_out);
  if (!s.fp32) memory.scratch(kPackingBytes);
  if (s.fp32 && s.tokens > 1) memory.scratch(4 * 64 * in);
}

// dx = dy W: the weight lies as the product reads it.
void linear_backward_input(const Sizes& s, int64_t bytes_out, Memory& memory) {
  memory.take(bytes_out);
  if (!s.fp32) memory.scratch(kPackingBytes);
}

// The product is added straight into an fp32 gradient when the operands are fp32.
void linear_backward_weight(const Sizes& s, int64_t in, int64_t out, bool has_bias, Memory& memory) {
  if (has_bias) memory.scratch(pieces(s) * 4 * out);
  if (!s.fp32) memory.scratch(in * out * s.input.element_size + kPackingBytes);
}

// What nn/attention_cpu packs, per thread: of a head keys and values, backward their gradients too, and some blocks of 48
// rows and of scores.
struct AttentionScratch {
  int64_t sequences, blocks, scores;
};
constexpr AttentionScratch kAttentionForward{.sequences = 2, .blocks = 3, .scores = 2};
constexpr AttentionScratch kAttentionBackward{.sequences = 4, .blocks = 5, .scores = 2};

int64_t attention_scratch(const Sizes& s, const AttentionScratch& scratch) {
  const auto round_up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t rows = scratch.sequences * round_up(s.input.seq_len, 48) + scratch.blocks * 48;
  return s.input.threads * 4 * (rows * round_up(s.model.head_size, 16) + scratch.scores * 48 * 48);
}

// The mask, kept, and for the product a copy of it in the dtype of x.
void dropout_forward(const Sizes& s, Memory& memory) {
  memory.take(s.mask);
  if (s.mask > 0) memory.scratch(s.hidden);
}

// A masked copy of dy; nothing without dropout. Releases the mask.
void dropout_backward(const Sizes& s, Memory& memory) {
  if (s.mask == 0) return;
  memory.take(s.hidden);
  memory.scratch(s.hidden);
  memory.drop(s.mask);
}

// Norms of query and key heads: what came in, copied, and a statistic a head. Nothing where the model has none.
int64_t head_norm_kept(const Sizes& s) {
  if (!s.model.qk_norm) return 0;
  const int64_t heads = s.model.heads + s.model.kv_heads;
  return s.activations(heads * s.model.head_size) + 4 * s.tokens * heads;
}

void head_norm_forward(const Sizes& s, Memory& memory) {
  if (s.model.qk_norm) memory.take(head_norm_kept(s)), memory.scratch(s.activations(s.model.kv_heads * s.model.head_size));
}

// The gradients, copied, stay for W; those of what came in go back to their place.
void head_norm_backward_input(const Sizes& s, Memory& memory) {
  if (!s.model.qk_norm) return;
  for (const int64_t heads : {s.model.heads, s.model.kv_heads}) {
    memory.take(s.activations(heads * s.model.head_size));
    memory.scratch(s.activations(heads * s.model.head_size));
  }
}

void head_norm_backward_weight(const Sizes& s, Memory& memory) {
  if (!s.model.qk_norm) return;
  memory.scratch(16 * 2 * 4 * s.model.head_size);
  memory.drop(head_norm_kept(s) + s.activations((s.model.heads + s.model.kv_heads) * s.model.head_size));
}

int64_t block_kept(const Sizes& s) {
  const int64_t attention = s.hidden + s.statistics + s.hidden + s.qkv + s.q + s.logsumexp;  // x, norm, q k v, mixed
  const int64_t mlp = s.hidden + s.statistics + s.hidden + s.up + s.ffn;
  return attention + head_norm_kept(s) + mlp + 2 * s.mask;
}

int64_t block_forward_peak(const Sizes& s) {
  Memory memory(s.hidden);  // x
  norm_forward(s, memory);
  linear(s, s.model.hidden, s.qkv, memory);
  head_norm_forward(s, memory);
  memory.take(s.q + s.logsumexp);
  memory.scratch(attention_scratch(s, kAttentionForward));
  linear(s, s.q_width, s.hidden, memory);  // becomes the sum after attention
  dropout_forward(s, memory);
  norm_forward(s, memory);
  linear(s, s.model.hidden, s.up, memory);
  memory.take(s.ffn);
  linear(s, s.model.ffn, s.hidden, memory);  // becomes the output
  dropout_forward(s, memory);
  return memory.peak();
}

void block_backward_input(const Sizes& s, Memory& memory) {
  dropout_backward(s, memory);
  linear_backward_input(s, s.ffn, memory);  // of the nonlinearity's output
  memory.drop(s.ffn);
  linear_backward_input(s, s.hidden, memory);  // of the norm's output
  norm_backward_input(s, memory);
  dropout_backward(s, memory);
  linear_backward_input(s, s.q, memory);  // of mixed
  memory.scratch(attention_scratch(s, kAttentionBackward));  // dq, dk, dv take the place of q, k, v
  memory.drop(s.logsumexp);
  head_norm_backward_input(s, memory);
  memory.drop(s.q);
  linear_backward_input(s, s.hidden, memory);
  norm_backward_input(s, memory);
}

void block_backward_weight(const Sizes& s, Memory& memory) {
  const ModelConfig& m = s.model;
  const int64_t dropped = s.mask > 0 ? s.hidden : 0;
  linear_backward_weight(s, m.ffn, m.hidden, m.mlp_bias, memory);  // down
  memory.drop(s.ffn + dropped);
  linear_backward_weight(s, m.hidden, s.up_width, m.mlp_bias, memory);
  memory.drop(s.hidden + s.up);
  norm_backward_weight(s, memory);
  memory.drop(2 * s.hidden + s.statistics);
  linear_backward_weight(s, s.q_width, m.hidden, m.out_bias, memory);  // attention's out
  memory.drop(s.q + s.hidden);
  head_norm_backward_weight(s, memory);
  linear_backward_weight(s, m.hidden, s.qkv_width, m.qkv_bias, memory);
  memory.drop(s.hidden + s.qkv);
  norm_backward_weight(s, memory);
}

void block_memory(const Sizes& s, LayerCost& cost) {
  cost.kept = block_kept(s);
  cost.output = s.hidden;
  cost.forward_workspace = block_forward_peak(s) - cost.kept - cost.output;
  Memory memory(cost.kept + cost.output);  // with dy
  block_backward_input(s, memory);
  block_backward_weight(s, memory);
  cost.backward_workspace = memory.peak() - cost.kept - 2 * cost.output;
}

void embedding_memory(const Sizes& s, LayerCost& cost) {
  cost.kept = s.mask;
  cost.output = s.hidden;
  cost.forward_workspace = s.mask > 0 ? s.hidden : 0;
  Memory memory(cost.kept + cost.output);
  dropout_backward(s, memory);
  const int64_t rows_fp32 = s.fp32 ? 0 : s.hidden_fp32();
  memory.scratch(rows_fp32 + (s.model.traits().learned_positions ? 4 * s.input.seq_len * s.model.hidden : 0));
  cost.backward_workspace = memory.peak() - cost.kept - cost.output;  // no dx
}

void head_memory(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  const int64_t rows = std::min(head_chunk_rows(m.vocab_size), s.tokens);  // of a chunk
  cost.kept = s.hidden + s.statistics + s.hidden;  // x, statistics, gradient of the norm's output
  cost.output = 4;
  Memory forward(s.hidden);
  norm_forward(s, forward);
  forward.take(rows * m.vocab_size * s.input.element_size);  // the logits, overwritten with their gradient
  if (!s.fp32) forward.scratch(2 * m.vocab_size * m.hidden + kPackingBytes);
  forward.scratch(rows * m.hidden * s.input.element_size + (s.fp32 ? 0 : kPackingBytes));  // their rows' gradient
  cost.forward_workspace = forward.peak() - cost.kept;
  Memory backward(cost.kept);
  norm_backward_input(s, backward);
  norm_backward_weight(s, backward);
  cost.backward_workspace = backward.peak() - cost.kept - s.hidden;
}

// ---- GEMMs and traffic

// y = x W^T for all tokens, and its two gradients.
void add_linear(const std::string& name, const Sizes& s, int64_t in, int64_t out, LayerCost& cost) {
  cost.forward.push_back({.name = name, .m = s.tokens, .n = out, .k = in});
  cost.backward.push_back({.name = name + ".dx", .m = s.tokens, .n = in, .k = out});
  cost.backward.push_back({.name = name + ".dw", .m = out, .n = in, .k = s.tokens});
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
}

// All three products run in forward: see nn/head.h.
void head_work(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  cost.forward = {{.name = "logits", .m = s.tokens, .n = m.vocab_size, .k = m.hidden},
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
