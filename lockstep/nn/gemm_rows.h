// The product of a few rows with a weight: what a step of generation is made of. It is bound by the rate at which the
// weight comes from memory, so each row of the weight is read once, for all rows of x, by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::nn {

// Up to so many rows are multiplied here rather than by a library.
inline constexpr int64_t kFewRows = 16;

// x [m, K] @ weight [N, K]^T (+ bias [N], may be undefined) -> [m, N]; fp32 on the CPU, rows contiguous. A row of the result
// is a function of its row of x alone, to the bit: whatever else is multiplied beside it, on any number of threads.
at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// Such a product in memory, for who has many of them.
struct FewRowsProduct {
  const float* x;       // [rows, depth]
  const float* weight;  // [columns, depth]
  const float* bias;    // [columns] or null
  float* out;           // [rows, columns]
  int64_t rows, columns, depth;
};
// Columns [begin, end) of its result, by the calling thread; begin a multiple of 4 gives the bits of the whole product.
void multiply_few_rows(const FewRowsProduct& product, int64_t begin, int64_t end);

}  // namespace lockstep::nn
