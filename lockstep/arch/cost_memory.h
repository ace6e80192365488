// What the walks over the memory of layers share: inside arch/ alone.
#pragma once

#include <algorithm>

#include "lockstep/arch/cost_sizes.h"

namespace lockstep::arch {

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

}  // namespace lockstep::arch
