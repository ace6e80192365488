// Latents on their way to whoever has queries for them.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/latent_attention.h"

namespace lockstep::nn {

// A block: [B, S, C + R], the latent behind its norm and the key that all heads share, rotated.
class LatentAttention::Source : public KeySource {
 public:
  explicit Source(LatentAttention& of) : of_(of) {}

  static at::Tensor block(const at::Tensor& latent, const at::Tensor& key) { return at::cat({latent, key.squeeze(2)}, -1); }

  Made make(const at::Tensor& block) override {
    const at::Tensor kv = of_.parts_.kv_up->forward(latent(block), nullptr).view({block.size(0), block.size(1), of_.shape_.heads, -1});
    const Heads heads = of_.with_keys({}, kv, block.narrow(2, kv_rank(), block.size(2) - kv_rank()).unsqueeze(2));
    return {.k = heads.k, .v = heads.v};
  }

  void backward(const at::Tensor& block, const Made& gradients, const at::Tensor& sum) override {
    const int64_t nope = of_.shape_.sizes.nope, value = of_.shape_.sizes.value;
    const at::Tensor dkv = at::empty({block.size(0), block.size(1), of_.shape_.heads, nope + value}, block.options());
    dkv.narrow(3, 0, nope).copy_(gradients.k.narrow(3, 0, nope));
    dkv.narrow(3, nope, value).copy_(gradients.v);
    Linear::Saved up{.x = latent(block), .dy = {}};
    sum.narrow(2, 0, kv_rank()).add_(of_.parts_.kv_up->backward_input(dkv.view({block.size(0), block.size(1), -1}), up));
    of_.parts_.kv_up->backward_weight(up);
    sum.narrow(2, kv_rank(), block.size(2) - kv_rank()).add_(of_.rope_of(gradients.k).sum(2));
  }

 private:
  int64_t kv_rank() const { return of_.shape_.sizes.kv_rank; }
  at::Tensor latent(const at::Tensor& block) const { return block.narrow(2, 0, kv_rank()).contiguous(); }
  LatentAttention& of_;
};

at::Tensor LatentAttention::travelling_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key, const TokenPlaces* places,
                                               Saved* saved) {
  LOCKSTEP_CHECK(places, "parts of sequences without the places of their tokens");
  turn_at(rope_of(q), places);
  turn_at(key, places);
  Source source(*this);
  if (saved) saved->q = q;
  return parts_.context->forward_of(source, q, Source::block(kv, key), *places, context_options(), saved ? &saved->context : nullptr);
}

LatentAttention::Latents LatentAttention::travelling_backward(const at::Tensor& dmixed, Saved& saved) {
  const int64_t kv_rank = shape_.sizes.kv_rank, rope = shape_.sizes.rope;
  const at::Tensor dq = std::exchange(saved.q, {});
  Source source(*this);
  const at::Tensor sum = parts_.context->backward_of(source, dmixed, std::exchange(saved.context, {}), dq).to(dq.scalar_type());
  turn_backward(rope_of(dq), saved.places);
  const at::Tensor dkey = sum.narrow(2, kv_rank, rope).contiguous().unsqueeze(2);
  turn_backward(dkey, saved.places);
  return {.q = dq.view({dq.size(0), dq.size(1), -1}), .kv = sum.narrow(2, 0, kv_rank).contiguous(), .key = dkey.view({-1, rope})};
}

}  // namespace lockstep::nn
