#include "lockstep/nn/attention.h"

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::nn {

Attention::Attention(Shape shape, std::unique_ptr<Linear> qkv, std::optional<Rotary> rotary,
                     std::unique_ptr<Linear> out)
    : shape_(shape), qkv_(std::move(qkv)), rotary_(std::move(rotary)), out_(std::move(out)) {}

at::Tensor Attention::forward(const at::Tensor& x, Saved* saved) {
  const at::Tensor projected = qkv_->forward(x, saved ? &saved->qkv : nullptr);
  if (rotary_) rotary_->apply(rotated(projected));
  const auto [q, k, v] = split(projected);
  const at::Tensor mixed = attention_core_forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                  /*causal=*/true, saved ? &saved->core : nullptr);
  if (saved) saved->projected = projected;
  return out_->forward(mixed, saved ? &saved->out : nullptr);
}

at::Tensor Attention::backward_input(const at::Tensor& dy, Saved& saved) {
  const at::Tensor dprojected = std::exchange(saved.projected, {});
  core_backward(dy, saved, dprojected);
  return qkv_->backward_input(dprojected, saved.qkv);
}

void Attention::core_backward(const at::Tensor& dy, Saved& saved, const at::Tensor& dprojected) {
  const auto [q, k, v] = split(dprojected);
  attention_core_backward(out_->backward_input(dy, saved.out), saved.core, {.dq = q, .dk = k, .dv = v});
  if (rotary_) rotary_->apply_inverse(rotated(dprojected));
}

void Attention::backward_weight(Saved& saved) {
  out_->backward_weight(saved.out);
  qkv_->backward_weight(saved.qkv);
}

at::Tensor Attention::decode(const at::Tensor& x, const KvCacheLayer& cache, int64_t start) {
  const int64_t added = x.size(1);
  LOCKSTEP_CHECK(start == 0 || added == 1, "start ", start, ", ", added, " tokens");
  const at::Tensor projected = qkv_->forward(x, nullptr);
  if (rotary_) rotary_->apply(rotated(projected), start);
  const auto [q, k, v] = split(projected);
  cache.k.narrow(1, start, added).copy_(k);
  cache.v.narrow(1, start, added).copy_(v);
  const at::Tensor all_k = cache.k.narrow(1, 0, start + added).transpose(1, 2);
  const at::Tensor all_v = cache.v.narrow(1, 0, start + added).transpose(1, 2);
  const bool causal = added > 1;  // one query may look at every key there is
  return out_->forward(attention_core_forward(q.transpose(1, 2), all_k, all_v, causal, nullptr), nullptr);
}

Attention::Heads Attention::split(const at::Tensor& projected) const {
  const at::Tensor heads = projected.view({projected.size(0), projected.size(1), -1, shape_.head_size});
  return {.q = heads.narrow(2, 0, shape_.heads),
          .k = heads.narrow(2, shape_.heads, shape_.kv_heads),
          .v = heads.narrow(2, shape_.heads + shape_.kv_heads, shape_.kv_heads)};
}

at::Tensor Attention::rotated(const at::Tensor& projected) const {
  const at::Tensor heads = projected.view({projected.size(0), projected.size(1), -1, shape_.head_size});
  return heads.narrow(2, 0, shape_.heads + shape_.kv_heads);
}

}  // namespace lockstep::nn
