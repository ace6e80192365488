#include "lockstep/nn/attention_spans_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <span>
#include <tuple>

#include "lockstep/nn/attention_heads.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMasked = -1e30f;  // finite: a row of nothing else gives no NaN
constexpr int64_t kBiasRow = 16, kSumsRow = 32;  // elements to which the kernel wants rows of a bias and of logsumexp aligned

int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The spans on the device of q.
KeySpans on_device(const AttentionRectangle& r) {
  const auto copy = [&](const at::Tensor& x) {
    return upload(std::span<const int32_t>(x.const_data_ptr<int32_t>(), static_cast<size_t>(x.numel())), r.q.device()).view(x.sizes());
  };
  return {.first = copy(r.spans.first), .last = copy(r.spans.last)};
}

// [B, H, Sq, Skv], one for all heads: zero where a query sees a key.
at::Tensor bias_of(const AttentionRectangle& r, const KeySpans& spans) {
  const int64_t batch = r.q.size(0), queries = r.q.size(2), keys = r.k.size(2);
  const at::Tensor key = at::arange(keys, spans.first.options());
  at::Tensor hidden = key.lt(spans.first.unsqueeze(-1));
  hidden.logical_or_(key.ge(spans.last.unsqueeze(-1)));
  at::Tensor bias = at::zeros({batch, 1, queries, whole(keys, kBiasRow)}, r.q.options()).narrow(3, 0, keys);
  bias.masked_fill_(hidden.unsqueeze(1), kMasked);
  return bias.expand({batch, r.q.size(1), queries, keys});
}

// The share of old sums in new ones; where there is nothing at all, none.
at::Tensor share_of(const at::Tensor& part, const at::Tensor& sum) { return at::exp(part - sum).masked_fill_(part.isneginf(), 0); }

// [B, H, Sq] -> [B, Sq, H, 1]
at::Tensor by_token(const at::Tensor& x) { return x.transpose(1, 2).unsqueeze(-1); }

}  // namespace

AttentionResult attend_alone_device(const AttentionRectangle& r) {
  check_rectangle(r);
  const int64_t batch = r.q.size(0), heads = r.q.size(1), queries = r.q.size(2), width = r.v.size(3);
  if (queries == 0 || r.k.size(2) == 0)
    return {.out = at::zeros({batch, queries, heads, width}, r.q.options()),
            .logsumexp = at::full({batch, heads, queries}, -kInfinity, r.q.options().dtype(at::kFloat))};
  const Padded padded = padding_of(r.q, r.v);
  const KeySpans spans = on_device(r);
  const auto made = at::_scaled_dot_product_efficient_attention(
      padded(r.q), padded(repeat_heads(r.k, heads)), padded(repeat_heads(r.v, heads)), bias_of(r, spans),
      /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/false, scale_of(r.q, r.scale));
  const at::Tensor none = spans.first.ge(spans.last);  // [B, Sq]
  AttentionResult result{.out = std::get<0>(made).narrow(-1, 0, width).transpose(1, 2).contiguous(),
                         .logsumexp = std::get<1>(made).narrow(2, 0, queries).contiguous()};
  result.out.masked_fill_(none.unsqueeze(-1).unsqueeze(-1), 0);
  result.logsumexp.masked_fill_(none.unsqueeze(1), -kInfinity);
  return result;
}

void merge_seen(const AttentionResult& block, const SeenSums& seen) {
  const at::Tensor sum = at::logaddexp(seen.logsumexp, block.logsumexp);
  seen.out.mul_(by_token(share_of(seen.logsumexp, sum)));
  seen.out.add_(block.out * by_token(share_of(block.logsumexp, sum)));
  seen.logsumexp.copy_(sum);
}

HeadGradients attend_backward_device(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& r) {
  check_rectangle(r);
  const int64_t heads = r.q.size(1), queries = r.q.size(2), kv_heads = r.k.size(1);
  if (queries == 0 || r.k.size(2) == 0)
    return {.dq = at::zeros(r.q.sizes(), r.q.options()),
            .dk = at::zeros(r.k.sizes(), r.k.options()),
            .dv = at::zeros(r.v.sizes(), r.v.options())};
  const Padded padded = padding_of(r.q, r.v);
  // Of queries that see no key at all, and of rows behind the last query, any sum will do whose weights are no NaN.
  const at::Tensor logsumexp = at::full({r.q.size(0), heads, whole(queries, kSumsRow)}, kInfinity, seen.logsumexp.options());
  logsumexp.narrow(2, 0, queries).copy_(seen.logsumexp.masked_fill(seen.logsumexp.isneginf(), 0));
  const at::Tensor nothing_dropped = at::empty({}, at::kLong);
  at::Tensor dq, dk, dv, dbias;
  std::tie(dq, dk, dv, dbias) = at::_scaled_dot_product_efficient_attention_backward(
      padded(dout.transpose(1, 2)), padded(r.q), padded(repeat_heads(r.k, heads)), padded(repeat_heads(r.v, heads)), bias_of(r, on_device(r)),
      padded(seen.out.to(r.q.scalar_type()).transpose(1, 2)), logsumexp, nothing_dropped, nothing_dropped, 0.0,
      {true, true, true, false}, /*is_causal=*/false, scale_of(r.q, r.scale));
  return {.dq = dq.narrow(-1, 0, r.q.size(3)),
          .dk = sum_heads(dk, kv_heads).narrow(-1, 0, r.k.size(3)),
          .dv = sum_heads(dv, kv_heads).narrow(-1, 0, r.v.size(3))};
}

}  // namespace lockstep::nn
