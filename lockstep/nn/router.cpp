#include "lockstep/nn/router.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/softmax_row.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using config::Router;
using vec::Floats;
using vec::kLanes;

constexpr int64_t kGrain = 16384;  // scores worth a thread
constexpr float kTiny = 1e-20f;    // added to sums of sigmoid scores

// Returns the logarithm of the sum of exponentials.
LOCKSTEP_INLINE float softmax_row(float* row, int64_t size) {
  const RowSum sum = sum_row(row, size);
  scale_row(row, size, sum.largest, 1 / sum.sum);
  return sum.largest + std::log(sum.sum);
}

LOCKSTEP_INLINE void sigmoid_row(float* row, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{};
    vec::load(row + i, size - i, x);
    vec::store(row + i, size - i, 1.0f / (1.0f + vec::exp(-x)));
  }
}

LOCKSTEP_CLONES void softmax_rows(float* rows, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) softmax_row(rows + i * size, size);
}

LOCKSTEP_CLONES void sigmoid_rows(float* rows, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) sigmoid_row(rows + i * size, size);
}

// To a share of the sum of each row.
LOCKSTEP_CLONES void normalize_rows(float* rows, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) {
    float* const row = rows + i * size;
    float sum = kTiny;
    for (int64_t e = 0; e < size; ++e) sum += row[e];
    for (int64_t e = 0; e < size; ++e) row[e] /= sum;
  }
}

LOCKSTEP_CLONES void log_sums(const float* rows, int64_t count, int64_t size, float* scratch, double* sums) {
  for (int64_t i = 0; i < count; ++i) {
    std::copy(rows + i * size, rows + (i + 1) * size, scratch);
    sums[i] = softmax_row(scratch, size);
  }
}

// A copy of which change(rows, count, size) has passed all rows.
template <typename Change>
at::Tensor with_rows(const at::Tensor& matrix, const Change& change) {
  LOCKSTEP_CHECK(matrix.is_cpu() && matrix.is_contiguous() && matrix.scalar_type() == at::kFloat);
  at::Tensor result = matrix.clone();
  const int64_t size = matrix.size(1);
  float* const rows = result.data_ptr<float>();
  at::parallel_for(0, matrix.size(0), std::max<int64_t>(1, kGrain / size),
                   [&](int64_t begin, int64_t end) { change(rows + begin * size, end - begin, size); });
  return result;
}

at::Tensor softmax_of(const at::Tensor& logits) {
  return with_rows(logits, [](float* rows, int64_t count, int64_t size) { softmax_rows(rows, count, size); });
}
at::Tensor sigmoid_of(const at::Tensor& logits) {
  return with_rows(logits, [](float* rows, int64_t count, int64_t size) { sigmoid_rows(rows, count, size); });
}
at::Tensor shares_of(const at::Tensor& scores) {
  return with_rows(scores, [](float* rows, int64_t count, int64_t size) { normalize_rows(rows, count, size); });
}

int64_t sequence_of(const Routing& routing, int64_t own_row) { return (routing.begin + own_row) / routing.rows_of_sequence(); }

struct Backward {
  float* logits;                  // [T, E]
  const Assignment* assignments;
  const int64_t* offsets;         // [T + 1] into them
  const float* dweights;          // of assignments; 0 where dropped
  const float* aux_slope;         // [B, E], or null
  const float* z_slope;           // [B], or null
  int64_t begin, rows_of_sequence, experts;
  Router router;
  float scale;
};

// Gradient of p = softmax(x) by x, times `dp`: p (dp - p . dp).
LOCKSTEP_INLINE void add_softmax_gradient(const float* p, const float* dp, int64_t size, float* dx) {
  float dot = 0;
  for (int64_t e = 0; e < size; ++e) dot += p[e] * dp[e];
  for (int64_t e = 0; e < size; ++e) dx[e] += p[e] * (dp[e] - dot);
}

// weight_j = scale softmax over the chosen.
LOCKSTEP_INLINE void add_gradient_of_chosen(const Backward& b, int64_t begin, int64_t end, float* dx) {
  float dot = 0;
  for (int64_t i = begin; i < end; ++i) dot += b.assignments[i].weight * b.dweights[i];
  for (int64_t i = begin; i < end; ++i) dx[b.assignments[i].expert] += b.assignments[i].weight * (b.dweights[i] - dot / b.scale);
}

// weight_j = scale s_j / sum over the chosen; s = sigmoid(x), of which the auxiliary loss takes shares of all. ds is scratch.
LOCKSTEP_INLINE void add_sigmoid_gradient(const Backward& b, int64_t begin, int64_t end, const float* s, const float* aux, float* ds,
                                          float* dx) {
  std::fill(ds, ds + b.experts, 0.0f);
  float sum = kTiny, dot = 0;
  for (int64_t i = begin; i < end; ++i) {
    sum += s[b.assignments[i].expert];
    dot += s[b.assignments[i].expert] * b.dweights[i];
  }
  for (int64_t i = begin; i < end; ++i) ds[b.assignments[i].expert] += b.scale * (b.dweights[i] - dot / sum) / sum;
  if (aux) {
    sum = kTiny, dot = 0;
    for (int64_t e = 0; e < b.experts; ++e) sum += s[e], dot += s[e] * aux[e];
    for (int64_t e = 0; e < b.experts; ++e) ds[e] += (aux[e] - dot / sum) / sum;
  }
  for (int64_t e = 0; e < b.experts; ++e) dx[e] += ds[e] * s[e] * (1 - s[e]);
}

// scratch: three rows.
LOCKSTEP_INLINE void backward_row(const Backward& b, int64_t row, float* scratch) {
  float* const x = b.logits + row * b.experts;
  float* const p = scratch;
  float* const dp = scratch + b.experts;
  float* const s = scratch + 2 * b.experts;
  const int64_t begin = b.offsets[row], end = b.offsets[row + 1], sequence = (b.begin + row) / b.rows_of_sequence;
  const float* const aux = b.aux_slope ? b.aux_slope + sequence * b.experts : nullptr;
  std::copy(x, x + b.experts, p);
  const float log_sum = softmax_row(p, b.experts);
  std::copy(x, x + b.experts, s);
  std::fill(x, x + b.experts, 0.0f);
  if (b.router == Router::kSigmoid) {
    sigmoid_row(s, b.experts);
    add_sigmoid_gradient(b, begin, end, s, aux, dp, x);
  } else {
    std::fill(dp, dp + b.experts, 0.0f);
    if (aux) std::copy(aux, aux + b.experts, dp);
    if (b.router == Router::kSoftmaxAfterTopk)
      add_gradient_of_chosen(b, begin, end, x);
    else
      for (int64_t i = begin; i < end; ++i) dp[b.assignments[i].expert] += b.scale * b.dweights[i];
    add_softmax_gradient(p, dp, b.experts, x);
  }
  if (!b.z_slope) return;
  const float slope = 2 * b.z_slope[sequence] * log_sum;
  for (int64_t e = 0; e < b.experts; ++e) x[e] += slope * p[e];
}

LOCKSTEP_CLONES void backward_rows(const Backward& b, int64_t begin, int64_t end, float* scratch) {
  for (int64_t row = begin; row < end; ++row) backward_row(b, row, scratch);
}

// dweights in the order of assignments.
std::vector<float> by_assignment(const at::Tensor& dweights, const Routing& routing) {
  std::vector<float> values(routing.assignments.size(), 0.0f);
  const float* const from = dweights.const_data_ptr<float>();
  for (size_t place = 0; place < routing.slots.size(); ++place) values[static_cast<size_t>(routing.slots[place])] = from[place];
  return values;
}

std::vector<int64_t> row_offsets(const Routing& routing) {
  std::vector<int64_t> offsets(static_cast<size_t>(routing.own_rows()) + 1, 0);
  for (const Assignment& a : routing.assignments) ++offsets[static_cast<size_t>(a.row) + 1];
  for (size_t row = 1; row < offsets.size(); ++row) offsets[row] += offsets[row - 1];
  return offsets;
}

}  // namespace

at::Tensor router_scores(const at::Tensor& logits, Router router) {
  if (router == Router::kSoftmaxAfterTopk) return logits;
  return router == Router::kSigmoid ? sigmoid_of(logits) : softmax_of(logits);
}

at::Tensor router_probabilities(const at::Tensor& scores, Router router) {
  if (router == Router::kSigmoid) return shares_of(scores);
  return router == Router::kSoftmaxAfterTopk ? softmax_of(scores) : scores;
}

void add_aux_loss(Routing& routing, const at::Tensor& probabilities, std::span<const Assignment> assignments,
                  std::span<const double> valid, double coefficient) {
  const int64_t length = routing.length, experts = probabilities.size(1), sequences = std::ssize(valid);
  LOCKSTEP_CHECK_EQ(probabilities.size(0), sequences * length, "rows of ", sequences, " sequences");
  if (assignments.empty()) return;
  routing.aux_slope = at::empty({sequences, experts}, at::kFloat);
  std::vector<double> counts(static_cast<size_t>(sequences * experts), 0.0), sums = counts;
  for (const Assignment& a : assignments) ++counts[static_cast<size_t>(a.row / length * experts + a.expert)];
  const float* const p = probabilities.const_data_ptr<float>();
  for (int64_t row = 0; row < sequences * length; ++row)
    for (int64_t e = 0; e < experts; ++e) sums[static_cast<size_t>(row / length * experts + e)] += p[row * experts + e];
  const double each = static_cast<double>(std::ssize(assignments)) / static_cast<double>(sequences);  // S k
  const auto tokens = static_cast<double>(length);
  float* const slope = routing.aux_slope.data_ptr<float>();
  for (size_t i = 0; i < counts.size(); ++i) {
    const double factor = valid[i / static_cast<size_t>(experts)] * static_cast<double>(experts) * counts[i] / each / tokens;
    routing.aux_sum += factor * sums[i];
    slope[i] = static_cast<float>(coefficient * factor);
  }
}

void add_aux_loss_of_shares(Routing& routing, const at::Tensor& own_probabilities, std::span<const double> shares,
                            std::span<const double> valid, double coefficient) {
  const int64_t rows = own_probabilities.size(0), experts = own_probabilities.size(1);
  LOCKSTEP_CHECK_EQ(rows, routing.own_rows(), "own rows");
  LOCKSTEP_CHECK_EQ(std::ssize(shares), experts, "shares of experts");
  const double scale = static_cast<double>(experts) / static_cast<double>(routing.length);
  routing.aux_slope = at::empty({std::ssize(valid), experts}, at::kFloat);
  float* slope = routing.aux_slope.data_ptr<float>();
  for (const double targets : valid)
    for (const double share : shares) *slope++ = static_cast<float>(coefficient * targets * scale * share);
  const float* p = own_probabilities.const_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (const double share : shares) sum += share * *p++;
    routing.aux_sum += valid[static_cast<size_t>(sequence_of(routing, row))] * scale * sum;
  }
}

void add_z_loss(Routing& routing, const at::Tensor& own_logits, std::span<const double> valid, double coefficient) {
  const int64_t rows = own_logits.size(0), experts = own_logits.size(1);
  LOCKSTEP_CHECK(own_logits.is_cpu() && own_logits.is_contiguous());
  const auto tokens = static_cast<double>(routing.length);
  std::vector<double> sums(static_cast<size_t>(rows));
  const float* const logits = own_logits.const_data_ptr<float>();
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / experts), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(experts));
    log_sums(logits + begin * experts, end - begin, experts, scratch.data(), sums.data() + begin);
  });
  for (int64_t row = 0; row < rows; ++row) {
    const double log_sum = sums[static_cast<size_t>(row)];
    routing.z_sum += valid[static_cast<size_t>(sequence_of(routing, row))] / tokens * log_sum * log_sum;
  }
  routing.z_slope = at::empty({std::ssize(valid)}, at::kFloat);
  float* const slope = routing.z_slope.data_ptr<float>();
  for (size_t b = 0; b < valid.size(); ++b) slope[b] = static_cast<float>(coefficient * valid[b] / tokens);
}

void router_backward(const at::Tensor& logits, const at::Tensor& dweights, const Routing& routing, const RoutingRules& rules) {
  LOCKSTEP_CHECK(logits.is_cpu() && logits.is_contiguous() && dweights.is_cpu() && dweights.is_contiguous());
  LOCKSTEP_CHECK_EQ(dweights.numel(), routing.sent_rows(), "weights that were sent");
  LOCKSTEP_CHECK_EQ(logits.size(0), routing.own_rows(), "own rows");
  const std::vector<float> of_assignments = by_assignment(dweights, routing);
  const std::vector<int64_t> offsets = row_offsets(routing);
  const auto data = [](const at::Tensor& slope) { return slope.defined() ? slope.const_data_ptr<float>() : nullptr; };
  const Backward backward{.logits = logits.data_ptr<float>(),
                          .assignments = routing.assignments.data(),
                          .offsets = offsets.data(),
                          .dweights = of_assignments.data(),
                          .aux_slope = data(routing.aux_slope),
                          .z_slope = data(routing.z_slope),
                          .begin = routing.begin,
                          .rows_of_sequence = routing.rows_of_sequence(),
                          .experts = rules.experts,
                          .router = rules.router,
                          .scale = static_cast<float>(rules.routed_scale)};
  at::parallel_for(0, logits.size(0), std::max<int64_t>(1, kGrain / rules.experts), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(3 * rules.experts));
    backward_rows(backward, begin, end, scratch.data());
  });
}

}  // namespace lockstep::nn
