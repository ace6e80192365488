// What kernels take beside their operands while they run, in bytes, as data: inside arch/ alone. Of our own kernels by their
// code, of a library's by measurement.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/arch/cost.h"

namespace lockstep::arch {

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

// What nn/attention_cpu packs, per thread: of a head keys and values, backward their gradients too, and some blocks of 48 rows
// and of scores.
struct AttentionScratch {
  int64_t sequences, blocks, scores;
};
inline constexpr AttentionScratch kAttentionForward{.sequences = 2, .blocks = 3, .scores = 2};
inline constexpr AttentionScratch kAttentionBackward{.sequences = 4, .blocks = 5, .scores = 2};

inline int64_t attention_scratch(const CostInput& input, int64_t head_size, const AttentionScratch& scratch) {
  const int64_t rows = scratch.sequences * rounded_up(input.seq_len, 48) + scratch.blocks * 48;
  return input.threads * 4 * (rows * rounded_up(head_size, 16) + scratch.scores * 48 * 48);
}

// Of nn/head_norm's weight gradient.
inline int64_t head_norm_scratch(int64_t head_size) { return 16 * 2 * 4 * head_size; }

}  // namespace lockstep::arch
