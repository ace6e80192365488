#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/vector_math.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/program/summation.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::optim {
namespace {

using nn::vec::Floats;
using nn::vec::kLanes;
namespace vec = nn::vec;

constexpr int64_t kPiece = 1 << 14;

// Sixteen running sums in fp32 over at most kPiece elements, added up in fp64.
LOCKSTEP_CLONES double squares_of(const float* values, int64_t size) {
  Floats sums[4] = {};
  for (int64_t i = 0; i < size; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t at = i + j * kLanes;
      if (at >= size) break;
      Floats x{};
      vec::load(values + at, size - at, x);
      sums[j] += x * x;
    }
  }
  double total = 0;
  for (const Floats& sum : sums)
    for (int64_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sum[lane]);
  return total;
}

double sum_of_squares_cpu(const at::Tensor& values) {
  LOCKSTEP_CHECK(values.is_contiguous() && values.scalar_type() == at::kFloat, "squares of ", values.dtype());
  const float* data = values.const_data_ptr<float>();
  const int64_t size = values.numel();
  std::vector<double> sums(static_cast<size_t>((size + kPiece - 1) / kPiece));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      sums[static_cast<size_t>(i)] = squares_of(data + i * kPiece, std::min(kPiece, size - i * kPiece));
  });
  return program::sum_on_rank(program::Summed::kNorm, sums);
}

// On one device; what lies side by side, as the gradients of a layer do, is one: kernels are launched for each.
std::vector<at::Tensor> joined(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& gradient : gradients) {
    const bool follows = !all.empty() && gradient.is_alias_of(all.back()) &&
                         gradient.storage_offset() == all.back().storage_offset() + all.back().numel();
    if (follows)
      all.back() = all.back().as_strided({all.back().numel() + gradient.numel()}, {1}, all.back().storage_offset());
    else
      all.push_back(gradient);
  }
  return all;
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& gradients) {
  std::vector<double> squares;
  std::vector<at::Tensor> elsewhere, sums;
  for (const at::Tensor& gradient : gradients)
    if (gradient.is_cpu())
      squares.push_back(sum_of_squares_cpu(gradient));
    else
      elsewhere.push_back(gradient);
  for (const at::Tensor& gradient : joined(elsewhere)) sums.push_back(nn::cuda::square_sum(gradient));
  if (!sums.empty()) squares.push_back(at::stack(sums).sum().item<double>());  // waited for once
  return std::sqrt(program::sum_on_rank(program::Summed::kNorm, squares));
}

}  // namespace lockstep::optim
