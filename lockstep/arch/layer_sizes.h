// The local sizes that layer descriptions are made from, for LayerBuilder; and what kernels take beside their operands while they
// run, in bytes: of our own kernels by their code, of a library's by measurement.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/arch/cost.h"

namespace lockstep::arch {

// Of one microbatch of one layer.
struct Sizes {
  Sizes(const ModelConfig& m, const CostInput& in) : model(part_of(m, in.tensor)), vocab_size(m.vocab_size), input(in) {}

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
  const int64_t vocab_size;  // of all ranks
  const CostInput& input;
  const int64_t tokens = input.batch * input.seq_len;  // M = B S
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

// How a product reads its weight: as rows, each of a result's column (y = x W^T), or as columns (dx = dy W).
enum class Weight { kRows, kColumns };

struct ProductShape {
  int64_t rows, terms, columns;  // [rows, terms] times [terms, columns]
  Weight weight;
};

// Of nn::multiply: what oneDNN packs, by measurement on AVX2 and AVX-512 and at most this. Each thread packs 64 columns of the
// weight, up to 1024 terms at a time, where it lies as rows or its rows are a power of two apart. One row and, of rows, a few
// (nn/gemm_rows.h) go without.
inline int64_t product_scratch(const CostInput& input, const ProductShape& product) {
  constexpr int64_t kColumns = 64, kMostTerms = 1024, kFewRows = 16, kFarApart = 512;
  const int64_t threads = input.threads, terms = product.terms;
  if (input.element_size != 4) {
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

// Of nn::accumulate_matmul into [out, in]: straight into an fp32 gradient where the operands are fp32.
inline int64_t weight_gradient_scratch(const CostInput& input, int64_t in, int64_t out) {
  return input.element_size == 4 ? 0 : in * out * input.element_size + kPackingBytes;
}

// Sums over rows of [rows, columns] are taken in some pieces first, fp32 (nn/norm_cpu.cpp, nn/accumulate_cpu.cpp).
inline int64_t row_sum_scratch(int64_t rows, int64_t columns) { return std::min<int64_t>(16, rows) * 4 * columns; }

// What nn/attention_cpu packs, per thread: of a head keys and values, backward their gradients too, some blocks of 48 rows, and two
// of scores.
struct AttentionScratch {
  int64_t sequences, blocks;
};
inline constexpr AttentionScratch kAttentionForward{.sequences = 2, .blocks = 3};
inline constexpr AttentionScratch kAttentionBackward{.sequences = 4, .blocks = 5};

inline int64_t attention_scratch(const CostInput& input, int64_t head_size, const AttentionScratch& scratch) {
  const int64_t rows = scratch.sequences * rounded_up(input.seq_len, 48) + scratch.blocks * 48;
  return input.threads * 4 * (rows * rounded_up(head_size, 16) + 2 * 48 * 48);
}

// Of nn/head_norm's weight gradient.
inline int64_t head_norm_scratch(int64_t head_size) { return 16 * 2 * 4 * head_size; }

}  // namespace lockstep::arch
