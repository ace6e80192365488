#include "lockstep/nn/attention_spans.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_cpu_spans.h"
#include "lockstep/nn/attention_spans_device.h"

namespace lockstep::nn {
namespace {

void check_sums(const SeenSums& seen, const AttentionRectangle& r) {
  LOCKSTEP_CHECK(seen.out.sizes() == at::IntArrayRef({r.q.size(0), r.q.size(2), r.q.size(1), r.v.size(3)}), "out ", seen.out.sizes(),
                 " of q ", r.q.sizes(), " and v ", r.v.sizes());
  LOCKSTEP_CHECK(seen.logsumexp.sizes() == r.q.sizes().slice(0, 3), "logsumexp ", seen.logsumexp.sizes(), " of q ", r.q.sizes());
  LOCKSTEP_CHECK(seen.out.is_contiguous() && seen.logsumexp.is_contiguous() && seen.logsumexp.scalar_type() == at::kFloat, "out ",
                 seen.out.strides(), ", logsumexp ", seen.logsumexp.strides(), " in ", seen.logsumexp.dtype());
}

// [B, Sq, heads, width] fp32 of an operand [B, heads, S, width].
void check_gradient(const at::Tensor& d, const at::Tensor& x) {
  LOCKSTEP_CHECK(d.sizes() == at::IntArrayRef({x.size(0), x.size(2), x.size(1), x.size(3)}), "a gradient ", d.sizes(), " of ", x.sizes());
  LOCKSTEP_CHECK(d.is_contiguous() && d.scalar_type() == at::kFloat, "a gradient of strides ", d.strides(), " in ", d.dtype());
}

// What KeySpans promises.
void check_spans(const KeySpans& spans, int64_t batch, int64_t queries, int64_t keys) {
  for (const at::Tensor& x : {spans.first, spans.last}) {
    LOCKSTEP_CHECK(x.defined() && x.is_cpu() && x.scalar_type() == at::kInt && x.is_contiguous(), "spans are int32 of the host");
    LOCKSTEP_CHECK(x.dim() == 2 && x.size(0) == batch && x.size(1) == queries, "spans ", x.sizes(), " of ", batch, " sequences of ", queries);
  }
  const auto* const first = spans.first.const_data_ptr<int32_t>();
  const auto* const last = spans.last.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < batch * queries; ++i) {
    const int64_t before = i % queries == 0 ? i : i - 1;
    LOCKSTEP_CHECK(first[i] >= first[before] && last[i] >= last[before] && first[i] >= 0 && last[i] <= keys, "query ", i % queries,
                   " of sequence ", i / queries, " sees keys [", first[i], ", ", last[i], ") of ", keys, ", the one before it [",
                   first[before], ", ", last[before], ")");
  }
}

}  // namespace

void check_rectangle(const AttentionRectangle& r) {
  LOCKSTEP_CHECK(r.q.dim() == 4 && r.k.dim() == 4 && r.v.dim() == 4, "q ", r.q.sizes(), ", k ", r.k.sizes(), ", v ", r.v.sizes());
  const bool alike = r.k.size(0) == r.q.size(0) && r.v.size(0) == r.q.size(0) && r.v.size(1) == r.k.size(1) && r.v.size(2) == r.k.size(2);
  LOCKSTEP_CHECK(alike && r.k.size(3) == r.q.size(3) && r.q.size(1) % r.k.size(1) == 0, "q ", r.q.sizes(), ", k ", r.k.sizes(), ", v ",
                 r.v.sizes());
  LOCKSTEP_CHECK(r.k.scalar_type() == r.q.scalar_type() && r.v.scalar_type() == r.q.scalar_type(), "q in ", r.q.dtype(), ", k in ",
                 r.k.dtype(), ", v in ", r.v.dtype());
  check_spans(r.spans, r.q.size(0), r.q.size(2), r.k.size(2));
}

SeenSums nothing_seen(const at::Tensor& q, int64_t value_width) {
  const at::TensorOptions options = q.options().dtype(at::kFloat);
  return {.out = at::zeros({q.size(0), q.size(2), q.size(1), value_width}, options),
          .logsumexp = at::full({q.size(0), q.size(1), q.size(2)}, -std::numeric_limits<float>::infinity(), options)};
}

void attend(const AttentionRectangle& r, SeenSums& seen) {
  check_sums(seen, r);
  LOCKSTEP_CHECK(seen.out.scalar_type() == at::kFloat, "sums in ", seen.out.dtype());
  if (r.q.is_cuda())
    merge_seen(attend_alone_device(r), seen);
  else
    attend_cpu(r, seen);
}

void attend_backward(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& r, const AttentionGradients& gradients) {
  check_sums(seen, r);
  LOCKSTEP_CHECK(dout.sizes() == seen.out.sizes() && dout.is_contiguous() && dout.scalar_type() == r.q.scalar_type(), "dout ", dout.sizes(),
                 " in ", dout.dtype(), " of q ", r.q.sizes(), " in ", r.q.dtype());
  check_gradient(gradients.dq, r.q);
  check_gradient(gradients.dk, r.k);
  check_gradient(gradients.dv, r.v);
  if (!r.q.is_cuda()) return attend_backward_cpu(dout, seen, r, gradients);
  const HeadGradients made = attend_backward_device(dout, seen, r);
  gradients.dq.add_(made.dq.transpose(1, 2));
  gradients.dk.add_(made.dk.transpose(1, 2));
  gradients.dv.add_(made.dv.transpose(1, 2));
}

void attend_sinks(const at::Tensor& sinks, SeenSums& seen) {
  const at::Tensor sum = at::logaddexp(seen.logsumexp, sinks.view({1, -1, 1}));
  seen.out.mul_(at::exp(seen.logsumexp - sum).transpose(1, 2).unsqueeze(-1));
  seen.logsumexp.copy_(sum);
}

// The sink has the value zero: d score = weight (0 - sum(dout * out)).
void attend_sinks_backward(const at::Tensor& dout, const SeenSums& seen, const at::Tensor& sinks, const at::Tensor& dsinks) {
  const at::Tensor along = at::mul(dout.to(at::kFloat), seen.out).sum(-1);  // [B, Sq, H]
  const at::Tensor weight = at::exp(sinks.view({1, -1, 1}) - seen.logsumexp);
  dsinks.sub_(at::mul(weight, along.transpose(1, 2)).sum(at::IntArrayRef({0, 2})));
}

}  // namespace lockstep::nn
