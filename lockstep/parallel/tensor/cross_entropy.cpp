// The softmax cross-entropy of a vocabulary in parts.
#include "lockstep/parallel/tensor/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/check.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/softmax_row.h"
#include "lockstep/parallel/tensor/vocabulary.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::parallel {
namespace {

using nn::kIgnoredTarget;

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Of one part of a row of logits.
struct RowPart {
  float largest, sum, target;
};

struct Rows {
  const int64_t* targets;
  int64_t size;   // V/tp
  int64_t first;  // token of column 0
  bool here(int64_t row) const { return targets[row] >= first && targets[row] < first + size; }
};

template <typename T>
LOCKSTEP_INLINE void rows_part(T* logits, const Rows& rows, RowPart* parts, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    T* row = logits + i * rows.size;
    if (rows.targets[i] == kIgnoredTarget) {
      std::fill(row, row + rows.size, T(0));
      parts[i] = {.largest = 0, .sum = 1, .target = 0};
      continue;
    }
    const float target = rows.here(i) ? static_cast<float>(row[rows.targets[i] - rows.first]) : kNone;
    const nn::RowSum sum = nn::sum_row(row, rows.size);
    parts[i] = {.largest = sum.largest, .sum = sum.sum, .target = target};
  }
}

// A row's parts put together: largest over all ranks, sum relative to it, the target's logit.
LOCKSTEP_INLINE RowPart whole_row(const RowPart* parts, int64_t ranks, int64_t stride) {
  RowPart whole{.largest = kNone, .sum = 0, .target = kNone};
  for (int64_t r = 0; r < ranks; ++r) {
    whole.largest = std::max(whole.largest, parts[r * stride].largest);
    whole.target = std::max(whole.target, parts[r * stride].target);
  }
  for (int64_t r = 0; r < ranks; ++r)
    whole.sum += parts[r * stride].sum * std::exp(parts[r * stride].largest - whole.largest);
  return whole;
}

struct Whole {
  const RowPart* parts;
  int64_t ranks, mine;
  int64_t rows;  // m
  float* losses;
};

template <typename T>
LOCKSTEP_INLINE void rows_whole(T* logits, const Rows& rows, const Whole& all, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    all.losses[i] = 0;
    if (rows.targets[i] == kIgnoredTarget) continue;
    const RowPart whole = whole_row(all.parts + i, all.ranks, all.rows);
    all.losses[i] = whole.largest + std::log(whole.sum) - whole.target;
    T* row = logits + i * rows.size;
    const float mine = all.parts[all.mine * all.rows + i].largest;
    const float scale = (nn::kKeepsExponentials<T> ? std::exp(mine - whole.largest) : 1.0f) / whole.sum;
    nn::scale_row(row, rows.size, whole.largest, scale);
    if (rows.here(i))
      row[rows.targets[i] - rows.first] = static_cast<T>(std::exp(whole.target - whole.largest) / whole.sum - 1);
  }
}

LOCKSTEP_CLONES void rows_part_fp32(float* logits, const Rows& rows, RowPart* parts, int64_t begin, int64_t end) {
  rows_part(logits, rows, parts, begin, end);
}
LOCKSTEP_CLONES void rows_part_bf16(c10::BFloat16* logits, const Rows& rows, RowPart* parts, int64_t begin,
                                    int64_t end) {
  rows_part(logits, rows, parts, begin, end);
}
LOCKSTEP_CLONES void rows_whole_fp32(float* logits, const Rows& rows, const Whole& all, int64_t begin, int64_t end) {
  rows_whole(logits, rows, all, begin, end);
}
LOCKSTEP_CLONES void rows_whole_bf16(c10::BFloat16* logits, const Rows& rows, const Whole& all, int64_t begin,
                                     int64_t end) {
  rows_whole(logits, rows, all, begin, end);
}

static_assert(sizeof(RowPart) == 3 * sizeof(float));

at::Tensor part_cpu(const at::Tensor& logits, const Rows& rows) {
  const at::Tensor parts = at::empty({logits.size(0), 3}, at::kFloat);
  auto* out = static_cast<RowPart*>(parts.data_ptr());
  at::parallel_for(0, logits.size(0), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    if (logits.scalar_type() == at::kFloat)
      rows_part_fp32(logits.data_ptr<float>(), rows, out, begin, end);
    else
      rows_part_bf16(logits.data_ptr<c10::BFloat16>(), rows, out, begin, end);
  });
  return parts;
}

at::Tensor whole_cpu(const at::Tensor& logits, const Rows& rows, const at::Tensor& parts, int rank) {
  const at::Tensor losses = at::empty({logits.size(0)}, at::kFloat);
  const Whole whole{.parts = static_cast<const RowPart*>(parts.const_data_ptr()),
                    .ranks = parts.size(0),
                    .mine = rank,
                    .rows = logits.size(0),
                    .losses = losses.data_ptr<float>()};
  at::parallel_for(0, logits.size(0), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    if (logits.scalar_type() == at::kFloat)
      rows_whole_fp32(logits.data_ptr<float>(), rows, whole, begin, end);
    else
      rows_whole_bf16(logits.data_ptr<c10::BFloat16>(), rows, whole, begin, end);
  });
  return losses.sum();
}

// On a GPU by LibTorch's operators.
struct Targets {
  at::Tensor local;  // [m, 1]: column of the target, clamped
  at::Tensor here;   // [m, 1]: the target is one of the columns
  at::Tensor valid;  // [m, 1]: it counts
};
Targets targets_of(const at::Tensor& targets, int64_t first, int64_t size) {
  const at::Tensor local = targets.sub(first).unsqueeze(1);
  return {.local = local.clamp(0, size - 1),
          .here = local.ge(0).logical_and(local.lt(size)),
          .valid = targets.ne(kIgnoredTarget).unsqueeze(1)};
}

at::Tensor part_device(const at::Tensor& logits, const at::Tensor& targets, int64_t first) {
  const Targets t = targets_of(targets, first, logits.size(1));
  const at::Tensor x = logits.to(at::kFloat);
  const at::Tensor largest = at::amax(x, {1}, /*keepdim=*/true);
  const at::Tensor target = at::gather(x, 1, t.local).masked_fill(t.here.logical_not(), kNone);
  return at::stack({largest.squeeze(1), at::sum(at::exp(x.sub(largest)), {1}), target.squeeze(1)}, 1);
}

at::Tensor whole_device(const at::Tensor& logits, const at::Tensor& targets, int64_t first, const at::Tensor& parts) {
  const Targets t = targets_of(targets, first, logits.size(1));
  const at::Tensor largest = parts.select(2, 0).amax(0, true);  // [1, m]
  const at::Tensor sum = parts.select(2, 1).mul(parts.select(2, 0).sub(largest).exp()).sum(0);
  const at::Tensor target = parts.select(2, 2).amax(0);
  at::Tensor p = logits.to(at::kFloat).sub_(largest.t()).exp_().div_(sum.unsqueeze(1));
  p.scatter_add_(1, t.local, t.here.to(at::kFloat).neg_());
  at::Tensor(logits).copy_(p.masked_fill_(t.valid.logical_not(), 0));
  const at::Tensor loss = largest.squeeze(0).add(sum.log()).sub(target);
  return at::where(t.valid.squeeze(1), loss, 0.0).sum();
}

}  // namespace

at::Tensor cross_entropy_part_(at::Tensor logits, const at::Tensor& targets, int64_t first_token) {
  if (!logits.is_cpu()) return part_device(logits, targets, first_token);
  LOCKSTEP_CHECK(logits.is_contiguous() && targets.is_contiguous(), "rows side by side");
  return part_cpu(logits, {targets.const_data_ptr<int64_t>(), logits.size(1), first_token});
}

at::Tensor cross_entropy_whole_(at::Tensor logits, const at::Tensor& targets, int64_t first_token,
                                const at::Tensor& parts, int rank) {
  LOCKSTEP_CHECK(parts.is_contiguous() && parts.size(1) == logits.size(0) && parts.size(2) == 3,
                 "parts of ", logits.size(0), " rows");
  if (!logits.is_cpu()) return whole_device(logits, targets, first_token, parts);
  return whole_cpu(logits, {targets.const_data_ptr<int64_t>(), logits.size(1), first_token}, parts, rank);
}

VocabParallelCrossEntropy::VocabParallelCrossEntropy(TensorGroup& group, int64_t vocab_size, std::string_view name)
    : group_(group),
      tokens_(mesh::shard_range(vocab_size, group.size(), group.rank())),
      call_(program::named_call(name).with(program::CallPhase::kSoftmax)) {
  LOCKSTEP_CHECK(vocab_size >= group.size(), "a vocabulary of ", vocab_size, " for ", group.size(), " ranks");
}

at::Tensor VocabParallelCrossEntropy::loss_(at::Tensor logits, const at::Tensor& targets) {
  LOCKSTEP_CHECK(logits.dim() == 2 && targets.dim() == 1, "logits of ", logits.dim(), " dims, targets of ", targets.dim());
  LOCKSTEP_CHECK_EQ(logits.size(0), targets.size(0), "rows of logits and targets");
  LOCKSTEP_CHECK_EQ(logits.size(1), tokens_.size(), "columns of logits on rank ", group_.rank(), " of ", group_.size());
  const int64_t ranks = group_.size(), rows = targets.size(0);
  const at::Tensor part = cross_entropy_part_(logits, targets, tokens_.begin);
  const at::Tensor parts = group_.gather_rows(part, ranks * rows, call_)().view({ranks, rows, 3});
  return cross_entropy_whole_(logits, targets, tokens_.begin, parts, group_.rank());
}

}  // namespace lockstep::parallel
