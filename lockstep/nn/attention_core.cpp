#include "lockstep/nn/attention_core.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_cpu.h"
#include "lockstep/nn/attention_cpu_spans.h"
#include "lockstep/nn/attention_heads.h"
#include "lockstep/nn/attention_sinks.h"
#include "lockstep/nn/attention_spans_device.h"

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

// Backward over spans: LibTorch's gradients are copied, our own kernel writes to `grads`.
void spans_backward(const at::Tensor& dout, const AttentionCoreSaved& s, const AttentionCoreGrads& grads) {
  const AttentionRectangle rectangle{.q = s.q, .k = s.k, .v = s.v, .spans = s.spans, .scale = s.scale};
  const at::Tensor out = s.out.transpose(1, 2);
  if (!s.q.is_cuda())
    return attend_alone_backward_cpu(dout, {.out = out, .logsumexp = s.logsumexp}, rectangle,
                                     {.q = grads.dq.transpose(1, 2), .k = grads.dk.transpose(1, 2), .v = grads.dv.transpose(1, 2)});
  const HeadGradients made = attend_backward_device(dout, {.out = out, .logsumexp = s.logsumexp}, rectangle);
  grads.dq.copy_(made.dq.transpose(1, 2));
  grads.dk.copy_(made.dk.transpose(1, 2));
  grads.dv.copy_(made.dv.transpose(1, 2));
}

// Kernels of a GPU pad logsumexp.
at::Tensor logsumexp_of(const AttentionCoreSaved& s) { return s.logsumexp.narrow(2, 0, s.q.size(2)); }

}  // namespace

at::Tensor attention_core_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                  AttentionCoreSaved* saved, double scale, const at::Tensor& sinks) {
  LOCKSTEP_CHECK(causal || (scale == 0 && v.size(3) == q.size(3)), "values of ", v.size(3), " or scores scaled by ", scale);
  LOCKSTEP_CHECK(!causal || q.size(2) == k.size(2), "causal attention of ", q.size(2), " queries to ", k.size(2),
                 " keys");
  AttentionCoreSaved kept{.q = q, .k = k, .v = v, .out = {}, .logsumexp = {}, .rng_state = {}, .rng_unused = {}, .scale = scale,
                          .spans = {}, .sinks = sinks};
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
          /*compute_log_sumexp=*/saved != nullptr || sinks.defined(), 0.0, causal, scale_of(q, scale));
      kept.out = kept.out.narrow(-1, 0, v.size(-1));
      break;
  }
  // The kernels lay their output out as [B, S, H, K]: a view. Of widened heads it is a copy, which alone is kept.
  const at::Tensor out = kept.out.transpose(1, 2).reshape({q.size(0), q.size(2), -1});
  const at::Tensor by_head = out.view({q.size(0), q.size(2), q.size(1), v.size(3)});
  kept.out = by_head.transpose(1, 2);
  if (sinks.defined()) apply_sinks(sinks, by_head, logsumexp_of(kept));
  if (saved) *saved = std::move(kept);
  return out;
}

at::Tensor attention_core_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const KeySpans& spans,
                                  AttentionCoreSaved* saved, double scale, const at::Tensor& sinks) {
  const AttentionRectangle rectangle{.q = q, .k = k, .v = v, .spans = spans, .scale = scale};
  const AttentionResult result = q.is_cuda() ? attend_alone_device(rectangle) : attend_alone_cpu(rectangle);
  if (sinks.defined()) apply_sinks(sinks, result.out, result.logsumexp);
  if (saved)
    *saved = {.q = q, .k = k, .v = v, .out = result.out.transpose(1, 2), .logsumexp = result.logsumexp, .rng_state = {}, .rng_unused = {},
              .scale = scale, .spans = spans, .sinks = sinks};
  return result.out.view({q.size(0), q.size(2), q.size(1) * v.size(3)});
}

void attention_core_backward(const at::Tensor& dout, AttentionCoreSaved& saved, const AttentionCoreGrads& grads) {
  const AttentionCoreSaved s = std::exchange(saved, {});
  const at::Tensor by_head = dout.view({s.q.size(0), s.q.size(2), s.q.size(1), s.v.size(3)});
  LOCKSTEP_CHECK(s.sinks.defined() == grads.dsinks.defined(), "sinks without their gradient, or that of none");
  if (s.sinks.defined()) add_sinks_gradient(s.sinks, by_head, s.out.transpose(1, 2), logsumexp_of(s), grads.dsinks);
  if (s.spans.first.defined()) return spans_backward(by_head, s, grads);
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
