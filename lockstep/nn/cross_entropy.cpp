#include "lockstep/nn/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/softmax_row.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

template <typename T>
LOCKSTEP_INLINE float row_loss(T* row, int64_t size, int64_t target) {
  const float of_target = static_cast<float>(row[target]);
  const RowSum of_row = sum_row(row, size);
  const float log_sum = of_row.largest + std::log(of_row.sum);
  const float scale = 1 / of_row.sum;
  scale_row(row, size, of_row.largest, scale);
  row[target] = static_cast<T>(std::exp(of_target - of_row.largest) * scale - 1);
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
