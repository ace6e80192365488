// What layers cost as closed formulas and as walks written out by hand, layer by layer: the reference that the folds over layer
// descriptions are held against. It shares no code with them.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/cost.h"

namespace lockstep::arch::closed {

struct Gemm {
  std::string name;  // "qkv", "qkv.dx"
  int64_t m = 0, n = 0, k = 0;
  int64_t count = 1;  // batched
  bool in_weight = false;  // of action W
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(count);
  }
};

// With the products that its FLOPs are the sums of, and what RECOMPUTE does.
struct LayerCost : arch::LayerCost {
  std::vector<Gemm> forward, backward, recompute;
  int64_t recompute_traffic = 0;
};

// One of the things that a block's Saved holds.
struct KeptPart {
  std::string name;
  int64_t bytes = 0;
  Recompute most = Recompute::kNone;  // kept by this choice and by those that compute less again
  bool kept_by(Recompute choice) const { return choice <= most; }
};

// The sizes of one microbatch of one layer, in bytes where not said otherwise.
struct Sizes {
  Sizes(const ModelConfig& m, const CostInput& in)
      : model(part_of(m, in.tensor)),
        vocab_size(m.vocab_size),
        input(in),
        tokens(in.batch * in.seq_len),
        sequence(in.tensor.size > 1 && in.tensor.sequence_parallel),
        rows(sequence ? mesh::padded_part(tokens, in.tensor.size) : tokens),
        fp32(in.element_size == 4),
        q_width(model.heads * m.head_size),
        qkv_width(q_width + 2 * model.kv_heads * m.head_size),
        up_width(m.gated_mlp() ? 2 * model.ffn : model.ffn),
        hidden(rows * m.hidden * in.element_size),
        whole(sequence ? rows * in.tensor.size * m.hidden * in.element_size : 0),
        uneven(sequence && tokens % in.tensor.size != 0),
        q(activations(q_width)),
        qkv(activations(qkv_width)),
        up(activations(up_width)),
        ffn(activations(model.ffn)),
        logsumexp(4 * tokens * model.heads),
        statistics((m.traits().layer_norm ? 2 : 1) * 4 * rows),  // LayerNorm: mean and rstd in fp32; RMSNorm: rstd
        mask(m.dropout > 0 ? rows * m.hidden : 0) {}

  int64_t activations(int64_t width) const { return tokens * width * input.element_size; }
  int64_t gathered() const { return whole + (uneven ? hidden : 0); }  // while the rows of this rank, copied, are on their way
  int64_t scattered() const { return whole + (uneven ? whole : 0); }

  // The model whose layers are what this rank holds of them.
  static ModelConfig part_of(ModelConfig m, const TensorShard& shard) {
    m.heads /= shard.size;
    m.kv_heads = std::max<int64_t>(1, m.kv_heads / shard.size);
    m.ffn = mesh::shard_range(m.ffn, shard.size, shard.rank).size();
    m.vocab_size = mesh::shard_range(m.vocab_size, shard.size, shard.rank).size();
    return m;
  }

  const ModelConfig model;
  const int64_t vocab_size;  // of all ranks
  const CostInput& input;
  int64_t tokens;  // M = B S
  bool sequence;   // norms, dropout and sums act on `rows` of them
  int64_t rows;    // the last ranks may have fewer, in buffers of so many
  bool fp32;
  int64_t q_width;    // elements a token
  int64_t qkv_width;  // elements a token
  int64_t up_width;   // elements a token
  int64_t hidden;     // of the rows here
  int64_t whole;      // with sequence parallelism all rows, gathered or to be scattered; else 0
  bool uneven;        // they are copied to buffers of equal parts for that (parallel/tensor/group.cpp)
  int64_t q;
  int64_t qkv;
  int64_t up;
  int64_t ffn;
  int64_t logsumexp;
  int64_t statistics;
  int64_t mask;  // 0 without dropout
};

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

// Each function stands for the one of the same name in nn/.

inline void norm_forward(const Sizes& s, Memory& memory) {
  memory.take(s.hidden + s.statistics);
}

// Leaves dx; the statistics and both operands stay for W.
inline void norm_backward_input(const Sizes& s, Memory& memory) {
  memory.take(s.hidden);
}

// Sums over rows are taken in this many pieces first (nn/norm_cpu.cpp, nn/accumulate_cpu.cpp).
inline int64_t pieces(int64_t rows) { return std::min<int64_t>(16, rows); }

inline void norm_backward_weight(const Sizes& s, Memory& memory) { memory.scratch(pieces(s.rows) * 2 * 4 * s.model.hidden); }

inline constexpr int64_t kLossBytes = 4;  // a sum of losses

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Packing areas of a bf16 product (oneDNN), at least.
inline constexpr int64_t kPackingBytes = 128 * 1024;

// How a product reads its weight: as rows, each of a result's column (y = x W^T), or as columns (dx = dy W).
enum class Weight { kRows, kColumns };

struct Product {
  int64_t rows, terms, columns;  // [rows, terms] times [terms, columns]
  Weight weight;
};

// What nn::multiply takes beside its result: what oneDNN packs, by measurement on AVX2 and AVX-512 and at most this. Each
// thread packs 64 columns of the weight, up to 1024 terms at a time, where it lies as rows or its rows are a power of two apart.
// One row and, of rows, a few (nn/gemm_rows.h) go without.
inline int64_t product_scratch(const Sizes& s, const Product& product) {
  constexpr int64_t kColumns = 64, kMostTerms = 1024, kFewRows = 16, kFarApart = 512;
  const int64_t threads = s.input.threads, terms = product.terms;
  if (!s.fp32) {
    constexpr int64_t kResult = 4 * kColumns * 256 + 1024;  // in fp32, of a block of rows
    return std::max(kPackingBytes, threads * (2 * kColumns * std::min(kMostTerms, rounded_up(terms, 32)) + kResult));
  }
  constexpr int64_t kBatch = 640, kOnce = 384;  // lists of blocks
  const bool rows = product.weight == Weight::kRows;
  if (product.rows <= (rows ? kFewRows : 1)) return 0;
  const bool far_apart = product.columns >= kFarApart && (product.columns & (product.columns - 1)) == 0;
  const int64_t packed = rows || far_apart ? 4 * kColumns * std::min(kMostTerms, rounded_up(terms, 16)) : 0;
  return threads * (packed + kBatch) + kOnce;
}

// The mask, kept, and for the product a copy of it in the dtype of x.
inline void dropout_forward(const Sizes& s, Memory& memory) {
  memory.take(s.mask);
  if (s.mask > 0) memory.scratch(s.hidden);
}

// A masked copy of dy; nothing without dropout. Releases the mask.
inline void dropout_backward(const Sizes& s, Memory& memory) {
  if (s.mask == 0) return;
  memory.take(s.hidden);
  memory.scratch(s.hidden);
  memory.drop(s.mask);
}

// Of what is there behind I, which belongs to others.
struct Others {
  int64_t dx = 0;
  int64_t dy = 0;  // of the head: the loss
};

// Held and workspace of I alone: `memory` has walked over it. before: with dx.
inline void apart(const Memory& memory, int64_t before, const Others& others, LayerCost& cost) {
  cost.held = memory.now() - others.dx - others.dy;
  cost.input_workspace = memory.peak() - before;
}

// Ids relative to the first one here, and which of them are: of a vocabulary that is cut.
inline int64_t local_ids(const Sizes& s) { return s.input.tensor.size > 1 ? (2 * 8 + 3) * s.tokens : 0; }

// dy: what goes with it, which in action B without dropout its caller holds.
inline void embedding_backward_weight(const Sizes& s, int64_t dy, Memory& memory) {
  const int64_t fp32_rows = s.fp32 ? 0 : 4 * s.model.hidden;  // of bf16 rows that are added up, a copy
  if (s.model.traits().learned_positions)
    memory.scratch(s.sequence ? s.rows * fp32_rows : 4 * s.input.seq_len * s.model.hidden);
  memory.take(s.whole);
  memory.scratch(s.gathered() - s.whole);
  if (s.sequence) memory.drop(dy);
  // With a cut vocabulary the rows of tokens that live here: that share of them, if tokens are spread evenly.
  const int64_t size = s.input.tensor.size, here = s.tokens / size;
  if (size > 1) memory.take(here * s.model.hidden * s.input.element_size + 2 * 8 * s.tokens);
  memory.scratch((size > 1 ? here : s.tokens) * fp32_rows);
}

inline void embedding_memory(const Sizes& s, LayerCost& cost) {
  cost.kept = s.mask;
  cost.output = s.hidden;
  Memory forward(0);
  forward.take(s.sequence ? s.whole : s.hidden);
  forward.scratch(local_ids(s));
  if (s.sequence) {
    forward.take(s.hidden), forward.scratch(s.scattered() - s.whole), forward.drop(s.whole);
    if (s.model.traits().learned_positions) forward.scratch(s.hidden);
  }
  dropout_forward(s, forward);
  cost.forward_workspace = forward.peak() - cost.kept - cost.output;
  const int64_t before = cost.kept + cost.output;
  Memory memory(before);
  dropout_backward(s, memory);
  apart(memory, before, {.dx = 0, .dy = s.mask > 0 ? cost.output : 0}, cost);
  Memory weight(cost.held);
  embedding_backward_weight(s, s.hidden, weight);
  cost.weight_workspace = weight.peak() - cost.held;
  embedding_backward_weight(s, s.mask > 0 ? s.hidden : 0, memory);
  cost.backward_workspace = memory.peak() - before;  // no dx
}

inline void head_memory(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  const int64_t tp = s.input.tensor.size;
  const int64_t rows = std::min(head_chunk_rows(mesh::padded_part(s.vocab_size, tp)), s.tokens);  // of a chunk
  cost.kept = s.hidden;  // x
  Memory backward(cost.kept);
  norm_forward(s, backward);
  if (s.sequence) backward.take(s.whole), backward.scratch(s.gathered() - s.whole), backward.drop(s.hidden);
  backward.take(kLossBytes);
  const int64_t logits = rows * m.vocab_size * s.input.element_size;  // overwritten with their gradient
  backward.take(logits);
  backward.scratch(product_scratch(s, {.rows = rows, .terms = m.hidden, .columns = m.vocab_size, .weight = Weight::kRows}));
  const int64_t softmax = tp > 1 ? 4 * 3 * rows * (1 + tp) : 0;  // of this rank and of all
  backward.scratch(softmax + 4 * rows + kLossBytes);  // losses of rows, and their sum
  if (!s.fp32) backward.scratch(2 * m.vocab_size * m.hidden + kPackingBytes);
  const int64_t gradient = rows * m.hidden * s.input.element_size;  // of the chunk's rows
  backward.take(gradient);
  backward.scratch(product_scratch(s, {.rows = rows, .terms = m.vocab_size, .columns = m.hidden, .weight = Weight::kColumns}));
  backward.drop(gradient);
  backward.drop(logits);
  if (s.sequence) backward.take(s.hidden), backward.scratch(s.scattered() - s.whole), backward.drop(s.whole);
  norm_backward_input(s, backward);
  const int64_t before = cost.kept + s.hidden;  // with dx
  apart(backward, before, {.dx = s.hidden, .dy = kLossBytes}, cost);
  Memory weight(cost.held);
  norm_backward_weight(s, weight);
  cost.weight_workspace = weight.peak() - cost.held;
  norm_backward_weight(s, backward);
  cost.backward_workspace = backward.peak() - before;
}

}  // namespace lockstep::arch::closed
