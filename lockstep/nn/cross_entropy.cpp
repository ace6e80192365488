#include "lockstep/nn/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

// One row stays in the core's cache from its first pass to its last.
template <typename T>
LOCKSTEP_INLINE float row_loss(T* row, int64_t size, int64_t target) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr bool kKept = std::is_same_v<T, float>;  // the exponentials; bf16 would round them once more
  vec::Floats most = vec::splat(kNone);
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = vec::splat(kNone);
    vec::load(row + i, size - i, x);
    most = x > most ? x : most;
  }
  const float highest = vec::max(most);
  const float of_target = static_cast<float>(row[target]);
  vec::Floats total{};
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = vec::splat(kNone);
    vec::load(row + i, size - i, x);
    const vec::Floats e = vec::exp(x - highest);
    // Lanes past the end hold e^-87, far below the last bit of a sum that is at least 1.
    total += e;
    if constexpr (kKept) vec::store(row + i, size - i, e);
  }
  const float sum = vec::sum(total);
  const float log_sum = highest + std::log(sum);
  const float scale = 1 / sum;
  for (int64_t i = 0; i < size; i += vec::kLanes) {
    vec::Floats x = vec::splat(kNone);
    vec::load(row + i, size - i, x);
    vec::store(row + i, size - i, (kKept ? x : vec::exp(x - highest)) * scale);
  }
  row[target] = static_cast<T>(std::exp(of_target - highest) * scale - 1);
  return log_sum - of_target;
}

struct Rows {
  const int64_t* targets;
  float* losses;
  int64_t size;  // V
};

template <typename T>
LOCKSTEP_INLINE void rows_loss(T* logits, const Rows& rows, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    T* row = logits + i * rows.size;
    const int64_t target = rows.targets[i];
    if (target == kIgnoredTarget) {
      std::fill(row, row + rows.size, T(0));
      rows.losses[i] = 0;
      continue;
    }
    LOCKSTEP_CHECK(target >= 0 && target < rows.size, "target ", target, " of ", rows.size);
    rows.losses[i] = row_loss(row, rows.size, target);
  }
}

LOCKSTEP_CLONES void rows_loss_fp32(float* logits, const Rows& rows, int64_t begin, int64_t end) {
  rows_loss(logits, rows, begin, end);
}
LOCKSTEP_CLONES void rows_loss_bf16(c10::BFloat16* logits, const Rows& rows, int64_t begin, int64_t end) {
  rows_loss(logits, rows, begin, end);
}

at::Tensor cross_entropy_cpu(const at::Tensor& logits, const at::Tensor& targets) {
  LOCKSTEP_CHECK(logits.is_contiguous() && targets.is_contiguous(), "rows side by side");
  const at::Tensor losses = at::empty({logits.size(0)}, at::kFloat);
  const Rows rows{targets.const_data_ptr<int64_t>(), losses.data_ptr<float>(), logits.size(1)};
  at::parallel_for(0, logits.size(0), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    if (logits.scalar_type() == at::kFloat)
      rows_loss_fp32(logits.data_ptr<float>(), rows, begin, end);
    else
      rows_loss_bf16(logits.data_ptr<c10::BFloat16>(), rows, begin, end);
  });
  return losses.sum();
}

}  // namespace

at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& targets) {
  return logits.is_cpu() ? cross_entropy_cpu(logits, targets) : cuda::cross_entropy_(logits, targets);
}

}  // namespace lockstep::nn
