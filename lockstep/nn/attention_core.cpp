#include "lockstep/nn/attention_core.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_cpu.h"

namespace lockstep::nn {
namespace {

enum class Kernel {
  kCpuCausal,      // our own: what training and a prompt need
  kCpuFlash,       // LibTorch's, forward alone: one query that looks at every key
  kCudaFlash,      // half precision, grouped heads
  kCudaEfficient,  // fp32; key and value heads are repeated
};

Kernel kernel_for(const at::Tensor& q, bool causal) {
  if (!q.is_cuda()) return causal ? Kernel::kCpuCausal : Kernel::kCpuFlash;
  return q.scalar_type() == at::kFloat ? Kernel::kCudaEfficient : Kernel::kCudaFlash;
}

// [B, KV, S, K] -> [B, H, S, K], each head repeated H / KV times; itself where H = KV.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const int64_t group = heads / x.size(1);
  return x.unsqueeze(2).expand({-1, -1, group, -1, -1}).reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// The sum over each group of repeated heads: the backward of repeat_heads.
at::Tensor sum_heads(const at::Tensor& dx, int64_t kv_heads) {
  if (dx.size(1) == kv_heads) return dx;
  return dx.reshape({dx.size(0), kv_heads, -1, dx.size(2), dx.size(3)}).sum(2);
}

// The GPU's kernels take heads of whole 16 bytes: zeros behind K change no score and get no gradient that counts.
at::Tensor widened(const at::Tensor& x, int64_t width) {
  const int64_t unit = 16 / x.element_size(), whole = (std::max(x.size(-1), width) + unit - 1) / unit * unit;
  return whole == x.size(-1) ? x : at::constant_pad_nd(x, {0, whole - x.size(-1)});
}

// q, k and v as wide as the wider of them.
struct Padded {
  int64_t width;
  at::Tensor operator()(const at::Tensor& x) const { return widened(x, width); }
};
Padded padding_of(const at::Tensor& q, const at::Tensor& v) { return {std::max(q.size(-1), v.size(-1))}; }

// Of scores, by the head's own size where nothing is given.
double scale_of(const at::Tensor& q, double given) { return given > 0 ? given : 1 / std::sqrt(static_cast<double>(q.size(-1))); }

}  // namespace

at::Tensor attention_core_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                  AttentionCoreSaved* saved, double scale) {
  LOCKSTEP_CHECK(causal || (scale == 0 && v.size(3) == q.size(3)), "values of ", v.size(3), " or scores scaled by ", scale);
  LOCKSTEP_CHECK(!causal || q.size(2) == k.size(2), "causal attention of ", q.size(2), " queries to ", k.size(2),
                 " keys");
  AttentionCoreSaved kept{.q = q, .k = k, .v = v, .out = {}, .logsumexp = {}, .rng_state = {}, .rng_unused = {}, .scale = scale};
  const Padded padded = padding_of(q, v);
  switch (kernel_for(q, causal)) {
    case Kernel::kCpuCausal: {
      AttentionResult result = causal_attention_cpu({.q = q, .k = k, .v = v, .scale = scale});
      kept.out = result.out.transpose(1, 2);
      kept.logsumexp = std::move(result.logsumexp);
      break;
    }
    case Kernel::kCpuFlash:
      std::tie(kept.out, kept.logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal);
      break;
    case Kernel::kCudaFlash: {
      const auto result = at::_scaled_dot_product_flash_attention(padded(q), padded(k), padded(v), 0.0, causal,
                                                                  /*return_debug_mask=*/false, scale_of(q, scale));
      kept.out = std::get<0>(result).narrow(-1, 0, v.size(-1));
      kept.logsumexp = std::get<1>(result);
      kept.rng_state = std::get<6>(result);
      kept.rng_unused = std::get<7>(result);
      break;
    }
    case Kernel::kCudaEfficient:  // repeated heads are made again in backward rather than kept
      std::tie(kept.out, kept.logsumexp, kept.rng_state, kept.rng_unused) = at::_scaled_dot_product_efficient_attention(
          padded(q), padded(repeat_heads(k, q.size(1))), padded(repeat_heads(v, q.size(1))), std::nullopt,
          /*compute_log_sumexp=*/saved != nullptr, 0.0, causal, scale_of(q, scale));
      kept.out = kept.out.narrow(-1, 0, v.size(-1));
      break;
  }
  // The kernels lay their output out as [B, S, H, K]: a view. Of widened heads it is a copy, which alone is kept.
  const at::Tensor out = kept.out.transpose(1, 2).reshape({q.size(0), q.size(2), -1});
  kept.out = out.view({q.size(0), q.size(2), q.size(1), v.size(3)}).transpose(1, 2);
  if (saved) *saved = std::move(kept);
  return out;
}

void attention_core_backward(const at::Tensor& dout, AttentionCoreSaved& saved, const AttentionCoreGrads& grads) {
  const AttentionCoreSaved s = std::exchange(saved, {});
  const at::Tensor by_head = dout.view({s.q.size(0), s.q.size(2), s.q.size(1), s.v.size(3)});
  const at::Tensor d = by_head.transpose(1, 2);
  const Padded padded = padding_of(s.q, s.v);
  at::Tensor dq, dk, dv;  // [B, heads, S, K]
  switch (kernel_for(s.q, /*causal=*/true)) {
    case Kernel::kCpuCausal:
      return causal_attention_backward_cpu(
          by_head, {.out = s.out.transpose(1, 2), .logsumexp = s.logsumexp}, {.q = s.q, .k = s.k, .v = s.v, .scale = s.scale},
          {.q = grads.dq.transpose(1, 2), .k = grads.dk.transpose(1, 2), .v = grads.dv.transpose(1, 2)});
    case Kernel::kCpuFlash:
      LOCKSTEP_CHECK(false, "it has no backward");
    case Kernel::kCudaFlash:
      std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
          padded(d), padded(s.q), padded(s.k), padded(s.v), padded(s.out), s.logsumexp, {}, {}, s.q.size(2), s.k.size(2),
          0.0, true, s.rng_state, s.rng_unused, scale_of(s.q, s.scale));
      break;
    case Kernel::kCudaEfficient: {
      at::Tensor dbias;
      std::tie(dq, dk, dv, dbias) = at::_scaled_dot_product_efficient_attention_backward(
          padded(d), padded(s.q), padded(repeat_heads(s.k, s.q.size(1))), padded(repeat_heads(s.v, s.q.size(1))), {},
          padded(s.out), s.logsumexp, s.rng_state, s.rng_unused, 0.0, {true, true, true, false}, true, scale_of(s.q, s.scale));
      dk = sum_heads(dk, s.k.size(1));
      dv = sum_heads(dv, s.k.size(1));
      break;
    }
  }
  const auto put = [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from.transpose(1, 2).narrow(-1, 0, to.size(-1))); };
  put(grads.dq, dq);
  put(grads.dk, dk);
  put(grads.dv, dv);
}

}  // namespace lockstep::nn
