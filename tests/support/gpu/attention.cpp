// LibTorch's fused attention kernels for CUDA (_scaled_dot_product_flash_attention, ..._efficient_attention), which have no
// counterpart on the CPU, by their mathematics in fp32: out = softmax(scale q k^T) v, and its derivatives.
#include <ATen/DeviceGuard.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "support/gpu/host_view.h"
#include "support/gpu/streams.h"

namespace lockstep::testing::gpu {
namespace {

using at::Tensor;
using std::optional;

// What every one of the four functions takes. Queries [B, H, S, K]; keys and values [B, KV, S, K], KV divides H.
struct Heads {
  Tensor q, k, v;
  bool causal;
  double scale;
};

struct Attended {
  Tensor out;        // [B, H, S, K] in the type of q, in memory [B, S, H, K] as the kernels lay it
  Tensor logsumexp;  // [B, H, S] fp32
};

struct Gradients {
  Tensor q, k, v;
};

// On the host, in fp32.
Tensor wide(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_cuda() && tensor.dim() == 4 && tensor.stride(3) == 1, "attention: [B, heads, S, K] on the device");
  return host_view(tensor).to(at::kFloat);
}

Tensor repeated(const Tensor& heads, int64_t count) {
  return heads.size(1) == count ? heads : heads.repeat_interleave(count / heads.size(1), 1);
}

Tensor summed(const Tensor& heads, int64_t count) {
  if (heads.size(1) == count) return heads;
  return heads.view({heads.size(0), count, -1, heads.size(2), heads.size(3)}).sum(2);
}

Tensor laid_out(const Tensor& heads, at::ScalarType type) {
  return on_device(heads.to(type).transpose(1, 2).contiguous()).transpose(1, 2);
}

Tensor scores(const Heads& h, const Tensor& q, const Tensor& k) {
  const Tensor all = at::matmul(q, k.transpose(2, 3)).mul(h.scale);
  if (!h.causal) return all;
  TORCH_CHECK(q.size(2) == k.size(2), "attention: causal of ", q.size(2), " queries to ", k.size(2), " keys");
  const Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
  return all.masked_fill(later, -std::numeric_limits<double>::infinity());
}

double scale_of(const Tensor& q, optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

Attended attend(const Heads& h) {
  const Kernel kernel;
  const Tensor q = wide(h.q), k = repeated(wide(h.k), h.q.size(1)), v = repeated(wide(h.v), h.q.size(1));
  const Tensor all = scores(h, q, k);
  const Tensor logsumexp = at::logsumexp(all, {3});
  const Tensor out = at::matmul(all.sub(logsumexp.unsqueeze(3)).exp(), v);
  return {.out = laid_out(out, h.q.scalar_type()), .logsumexp = logsumexp};
}

Gradients attend_backward(const Heads& h, const Tensor& grad_out, const Tensor& out, const Tensor& host_logsumexp) {
  const Kernel kernel;
  const Tensor q = wide(h.q), k = repeated(wide(h.k), h.q.size(1)), v = repeated(wide(h.v), h.q.size(1));
  const Tensor dout = wide(grad_out);
  const Tensor p = scores(h, q, k).sub(host_logsumexp.unsqueeze(3)).exp();
  const Tensor around = dout.mul(wide(out)).sum({3}, /*keepdim=*/true);
  const Tensor dscores = at::matmul(dout, v.transpose(2, 3)).sub(around).mul(p).mul(h.scale);
  const int64_t kv = h.k.size(1);
  return {.q = laid_out(at::matmul(dscores, k), h.q.scalar_type()),
          .k = laid_out(summed(at::matmul(dscores.transpose(2, 3), q), kv), h.k.scalar_type()),
          .v = laid_out(summed(at::matmul(p.transpose(2, 3), dout), kv), h.v.scalar_type())};
}

Tensor generator_state() { return on_device(at::zeros({2}, at::kLong)); }

void check_nothing_dropped(double dropout) { TORCH_CHECK(dropout == 0, "attention: the emulation drops nothing"); }

// The kernels move 16 bytes at a time; their callers see to it.
void check_heads(const Tensor& q) {
  TORCH_CHECK(q.size(3) * q.element_size() % 16 == 0, "attention: heads of ", q.size(3), " elements are no whole 16 bytes");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal, bool, optional<double> scale) {
  check_nothing_dropped(dropout);
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
              "FlashAttention only support fp16 and bf16 data type");
  check_heads(q);
  const c10::DeviceGuard guard(q.device());
  const Attended result = attend({.q = q, .k = k, .v = v, .causal = causal, .scale = scale_of(q, scale)});
  return {result.out, on_device(result.logsumexp), Tensor(), Tensor(), q.size(2), k.size(2), generator_state(),
          generator_state(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&,
                                                  c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor&,
                                                  const Tensor&, optional<double> scale) {
  check_nothing_dropped(dropout);
  const c10::DeviceGuard guard(q.device());
  const Gradients result = attend_backward({.q = q, .k = k, .v = v, .causal = causal, .scale = scale_of(q, scale)}, grad_out,
                                           out, host_view(logsumexp));
  return {result.q, result.k, result.v};
}

constexpr int64_t kRows = 32;  // the kernel pads the rows of its logsumexp to a multiple of it

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const optional<Tensor>& bias, bool with_logsumexp, double dropout,
                                                     bool causal, optional<double> scale) {
  check_nothing_dropped(dropout);
  TORCH_CHECK(!bias.has_value() && q.size(1) == k.size(1), "attention: no bias, and as many key heads as query heads");
  check_heads(q);
  const c10::DeviceGuard guard(q.device());
  const Attended result = attend({.q = q, .k = k, .v = v, .causal = causal, .scale = scale_of(q, scale)});
  const int64_t rows = with_logsumexp ? (q.size(2) + kRows - 1) / kRows * kRows : 0;
  const Tensor padded = at::full({q.size(0), q.size(1), rows}, std::numeric_limits<double>::infinity(), at::kFloat);
  if (with_logsumexp) padded.narrow(2, 0, q.size(2)).copy_(result.logsumexp);
  return {result.out, on_device(padded), generator_state(), generator_state()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor&, const Tensor& out,
                                                              const Tensor& logsumexp, const Tensor&, const Tensor&,
                                                              double dropout, std::array<bool, 4>, bool causal,
                                                              optional<double> scale) {
  check_nothing_dropped(dropout);
  const c10::DeviceGuard guard(q.device());
  const Gradients result = attend_backward({.q = q, .k = k, .v = v, .causal = causal, .scale = scale_of(q, scale)}, grad_out,
                                           out, host_view(logsumexp).narrow(2, 0, q.size(2)));
  return {result.q, result.k, result.v, Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash));
  m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
}

}  // namespace
}  // namespace lockstep::testing::gpu
