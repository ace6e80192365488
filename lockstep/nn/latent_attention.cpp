#include "lockstep/nn/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/nn/latent_decode.h"

namespace lockstep::nn {
namespace {

// Columns [begin, begin + width), as a matrix of its own.
at::Tensor columns(const at::Tensor& x, int64_t begin, int64_t width) { return x.narrow(-1, begin, width).clone(at::MemoryFormat::Contiguous); }

}  // namespace

LatentAttention::LatentAttention(Shape shape, Parts parts) : shape_(shape), parts_(std::move(parts)) {}

at::Tensor LatentAttention::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  auto* kept = static_cast<Saved*>(saved);
  return parts_.out->forward(mix(x, kept, sequences), kept ? &kept->out : nullptr);
}

LatentAttention::Latents LatentAttention::project(const at::Tensor& x, Saved* saved) {
  const arch::LatentSizes& s = shape_.sizes;
  at::Tensor z = parts_.down->forward(x, saved ? &saved->down : nullptr);
  at::Tensor q = columns(z, 0, s.q_rank), kv = columns(z, s.q_rank, s.kv_rank);
  Latents latents{.q = {}, .kv = {}, .key = columns(z, s.q_rank + s.kv_rank, s.rope)};
  z.reset();
  latents.q = parts_.q_norm.forward(std::exchange(q, {}), saved ? &saved->q_norm : nullptr);
  latents.kv = parts_.kv_norm.forward(std::exchange(kv, {}), saved ? &saved->kv_norm : nullptr);
  return latents;
}

at::Tensor LatentAttention::mix(const at::Tensor& x, Saved* saved, const Sequences& sequences) {
  const auto by_head = [&](const at::Tensor& rows, int64_t heads) {
    return rows.view({sequences.count, sequences.length, heads, -1});
  };
  Latents latents = project(x, saved);
  at::Tensor key = by_head(parts_.keys->gather(std::exchange(latents.key, {})), 1);
  const at::Tensor q = by_head(parts_.q_up->forward(std::exchange(latents.q, {}), saved ? &saved->q_up : nullptr), shape_.heads);
  at::Tensor kv = by_head(parts_.kv_up->forward(std::exchange(latents.kv, {}), saved ? &saved->kv_up : nullptr), shape_.heads);
  turn(rope_of(q));
  turn(key);
  const Heads heads = with_keys(q, std::exchange(kv, {}), std::exchange(key, {}));
  at::Tensor mixed = core_forward(heads, saved ? &saved->core : nullptr);
  if (saved) saved->q = heads.q, saved->k = heads.k, saved->v = heads.v;
  return mixed;
}

LatentAttention::Heads LatentAttention::with_keys(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key) const {
  const arch::LatentSizes& s = shape_.sizes;
  Heads heads{.q = q, .k = at::empty(q.sizes(), q.options()), .v = columns(kv, s.nope, s.value)};
  heads.k.narrow(3, 0, s.nope).copy_(kv.narrow(3, 0, s.nope));
  rope_of(heads.k).copy_(key);  // to all heads
  return heads;
}

at::Tensor LatentAttention::core_forward(const Heads& heads, AttentionCoreSaved* saved) const {
  return attention_core_forward(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), /*causal=*/true, saved,
                                shape_.scale);
}

void LatentAttention::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  auto& kept = static_cast<Saved&>(saved);
  kept.out.x = mix(x, &kept, sequences);
}

at::Tensor LatentAttention::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  {
    const at::Tensor dmixed = parts_.out->backward_input(dy, kept.out).view({kept.q.size(0), kept.q.size(1), -1});
    attention_core_backward(dmixed, kept.core, {.dq = kept.q, .dk = kept.k, .dv = kept.v});
  }
  return parts_.down->backward_input(latents_backward(kept), kept.down);
}

at::Tensor LatentAttention::latents_backward(Saved& kept) {
  const arch::LatentSizes& s = shape_.sizes;
  Latents d = heads_backward(kept);
  const at::Tensor dkey = parts_.keys->reduce(std::exchange(d.key, {}));
  const at::Tensor dq = parts_.q_norm.backward_input(parts_.q_up->backward_input(std::exchange(d.q, {}), kept.q_up), kept.q_norm);
  const at::Tensor dkv = parts_.kv_norm.backward_input(parts_.kv_up->backward_input(std::exchange(d.kv, {}), kept.kv_up), kept.kv_norm);
  std::vector<int64_t> shape = dq.sizes().vec();
  shape.back() = s.projected();
  const at::Tensor dz = at::empty(shape, dq.options());
  dz.narrow(-1, 0, s.q_rank).copy_(dq);
  dz.narrow(-1, s.q_rank, s.kv_rank).copy_(dkv);
  const at::Tensor of_key = dz.narrow(-1, s.q_rank + s.kv_rank, s.rope);
  of_key.copy_(dkey.view(of_key.sizes()));
  return dz;
}

Pending LatentAttention::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return [dx = backward_input(dy, saved)] { return dx; };
}

LatentAttention::Latents LatentAttention::heads_backward(Saved& saved) const {
  const arch::LatentSizes& s = shape_.sizes;
  const at::Tensor dq = std::exchange(saved.q, {}), dk = std::exchange(saved.k, {}), dv = std::exchange(saved.v, {});
  const int64_t batch = dq.size(0), length = dq.size(1);
  turn_backward(rope_of(dq));
  const at::Tensor dkey = rope_of(dk).sum(2).view({batch, length, 1, s.rope});
  turn_backward(dkey);
  const at::Tensor dkv = at::empty({batch, length, shape_.heads, s.nope + s.value}, dq.options());
  dkv.narrow(3, 0, s.nope).copy_(dk.narrow(3, 0, s.nope));
  dkv.narrow(3, s.nope, s.value).copy_(dv);
  return {.q = dq.view({batch, length, -1}), .kv = dkv.view({batch, length, -1}), .key = dkey.view({batch * length, s.rope})};
}

void LatentAttention::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  parts_.out->backward_weight(kept.out);
  parts_.q_norm.backward_weight(kept.q_norm);
  parts_.kv_norm.backward_weight(kept.kv_norm);
  parts_.q_up->backward_weight(kept.q_up);
  parts_.kv_up->backward_weight(kept.kv_up);
  if (kept.down.x.numel() > 0) parts_.down->backward_weight(kept.down);  // there may be no rows here
  kept.down = {};
}

void LatentAttention::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.down.x.reset();
  kept.q_up.x.reset();
  kept.kv_up.x.reset();
}

void LatentAttention::restore(const at::Tensor& x, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.down.x = x;
  kept.q_up.x = parts_.q_norm.forward(kept.q_norm.x, nullptr);
  kept.kv_up.x = parts_.kv_norm.forward(kept.kv_norm.x, nullptr);
}

void LatentAttention::turn(const at::Tensor& x, int64_t start) const {
  if (shape_.sizes.interleaved) {
    const at::Tensor halves = x.view({x.size(0), x.size(1), x.size(2), -1, 2}).transpose(3, 4).contiguous();
    x.copy_(halves.view(x.sizes()));
  }
  parts_.rotary.apply(x, start);
}

void LatentAttention::turn_backward(const at::Tensor& x) const {
  parts_.rotary.apply_inverse(x);
  if (!shape_.sizes.interleaved) return;
  const at::Tensor pairs = x.view({x.size(0), x.size(1), x.size(2), 2, -1}).transpose(3, 4).contiguous();
  x.copy_(pairs.view(x.sizes()));
}

KvCacheLayer LatentAttention::new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const {
  const at::Tensor both = at::empty({slots, 1, capacity, shape_.sizes.kv_rank + shape_.sizes.rope}, options);
  return {.k = both, .v = both};
}

at::Tensor LatentAttention::decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  const int64_t batch = x.size(0), length = x.size(1);
  const Latents latents = project(x, nullptr);
  const at::Tensor q = parts_.q_up->forward(latents.q, nullptr).view({batch, length, shape_.heads, -1});
  const at::Tensor key = latents.key.view({batch, length, 1, -1});
  for (size_t b = 0; b < spans.size(); ++b) {
    const auto one = [&](const at::Tensor& heads) { return heads.narrow(0, static_cast<int64_t>(b), 1); };
    turn(rope_of(one(q)), spans[b].start);
    turn(one(key), spans[b].start);
  }
  const at::Tensor row = at::cat({latents.kv.view({batch, length, 1, -1}), key}, 3);
  append_to_cache(row, row, cache, spans);
  const bool prompt = std::ranges::all_of(spans, [](const CacheSpan& span) { return span.start == 0; });
  if (!prompt) return parts_.out->forward(latent_decode(q, parts_.kv_weight, cache, spans, {shape_.sizes, shape_.scale}), nullptr);
  const at::Tensor kv = parts_.kv_up->forward(latents.kv, nullptr).view({batch, length, shape_.heads, -1});
  return parts_.out->forward(core_forward(with_keys(q, kv, key), nullptr), nullptr);
}

}  // namespace lockstep::nn
