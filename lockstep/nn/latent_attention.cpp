#include "lockstep/nn/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/latent_decode.h"
#include "lockstep/nn/window_spans.h"

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
  if (saved) saved->places = sequences.places;
  if (latents_travel()) {
    const at::Tensor whole = parts_.latents->gather(std::exchange(latents.kv, {}));
    return travelling_forward(q, whole.view({sequences.count, sequences.length, -1}), key, sequences.places, saved);
  }
  at::Tensor kv = by_head(parts_.kv_up->forward(std::exchange(latents.kv, {}), saved ? &saved->kv_up : nullptr), shape_.heads);
  turn_at(rope_of(q), sequences.places);
  turn_at(key, sequences.places);
  const Heads heads = with_keys(q, std::exchange(kv, {}), std::exchange(key, {}));
  at::Tensor mixed = core_forward(heads, sequences.places, saved);
  if (saved) saved->q = heads.q, saved->k = heads.k, saved->v = heads.v;
  return mixed;
}

LatentAttention::Heads LatentAttention::with_keys(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key) const {
  const arch::LatentSizes& s = shape_.sizes;
  Heads heads{.q = q, .k = at::empty({kv.size(0), kv.size(1), shape_.heads, s.head()}, kv.options()), .v = columns(kv, s.nope, s.value)};
  heads.k.narrow(3, 0, s.nope).copy_(kv.narrow(3, 0, s.nope));
  rope_of(heads.k).copy_(key);  // to all heads
  return heads;
}

at::Tensor LatentAttention::core_forward(const Heads& heads, AttentionCoreSaved* saved) const {
  return attention_core_forward(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), /*causal=*/true, saved,
                                shape_.scale);
}

at::Tensor LatentAttention::core_forward(const Heads& heads, const TokenPlaces* places, Saved* saved) {
  if (parts_.context) {
    LOCKSTEP_CHECK(places, "parts of sequences without the places of their tokens");
    return parts_.context->forward({.q = heads.q, .k = heads.k, .v = heads.v}, *places, context_options(),
                                   saved ? &saved->context : nullptr);
  }
  AttentionCoreSaved* const kept = saved ? &saved->core : nullptr;
  const int64_t batch = heads.q.size(0), length = heads.q.size(1);
  if (!places && (shape_.window == 0 || shape_.window >= length)) return core_forward(heads, kept);
  const KeySpans spans = places ? spans_of(*places, 0, shape_.window) : spans_in_window(batch, length, shape_.window);
  return attention_core_forward(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), spans, kept, shape_.scale);
}

void LatentAttention::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  auto& kept = static_cast<Saved&>(saved);
  kept.out.x = mix(x, &kept, sequences);
}

at::Tensor LatentAttention::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  Latents d;
  {
    const at::Tensor dmixed = parts_.out->backward_input(dy, kept.out).view({kept.q.size(0), kept.q.size(1), -1});
    if (latents_travel())
      d = travelling_backward(dmixed, kept);
    else
      core_backward(dmixed, kept);
  }
  if (!latents_travel()) d = heads_backward(kept);
  return parts_.down->backward_input(latents_backward(std::move(d), kept), kept.down);
}

void LatentAttention::core_backward(const at::Tensor& dmixed, Saved& saved) {
  const AttentionCoreGrads grads{.dq = saved.q, .dk = saved.k, .dv = saved.v};
  if (saved.context)
    parts_.context->backward(dmixed, std::exchange(saved.context, {}), grads);
  else
    attention_core_backward(dmixed, saved.core, grads);
}

at::Tensor LatentAttention::latents_backward(Latents d, Saved& kept) {
  const arch::LatentSizes& s = shape_.sizes;
  const at::Tensor dkey = parts_.keys->reduce(std::exchange(d.key, {}));
  const at::Tensor dq = parts_.q_norm.backward_input(parts_.q_up->backward_input(std::exchange(d.q, {}), kept.q_up), kept.q_norm);
  const at::Tensor dlatent = latents_travel() ? parts_.latents->reduce(flatten_rows(std::exchange(d.kv, {}))).view(kept.kv_norm.x.sizes())
                                              : parts_.kv_up->backward_input(std::exchange(d.kv, {}), kept.kv_up);
  const at::Tensor dkv = parts_.kv_norm.backward_input(dlatent, kept.kv_norm);
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
  turn_backward(rope_of(dq), saved.places);
  const at::Tensor dkey = rope_of(dk).sum(2).view({batch, length, 1, s.rope});
  turn_backward(dkey, saved.places);
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
  if (!latents_travel()) parts_.kv_up->backward_weight(kept.kv_up);
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
  if (!latents_travel()) kept.kv_up.x = parts_.kv_norm.forward(kept.kv_norm.x, nullptr);
}

void LatentAttention::pairs_to_halves(const at::Tensor& x) const {
  if (!shape_.sizes.interleaved) return;
  const at::Tensor halves = x.view({x.size(0), x.size(1), x.size(2), -1, 2}).transpose(3, 4).contiguous();
  x.copy_(halves.view(x.sizes()));
}

void LatentAttention::turn(const at::Tensor& x, int64_t start) const {
  pairs_to_halves(x);
  parts_.rotary.apply(x, start);
}

void LatentAttention::turn_at(const at::Tensor& x, const TokenPlaces* places) const {
  if (!places) return turn(x);
  pairs_to_halves(x);
  parts_.rotary.apply(x, places->positions);
}

void LatentAttention::turn_backward(const at::Tensor& x, const TokenPlaces* places) const {
  if (places)
    parts_.rotary.apply_inverse(x, places->positions);
  else
    parts_.rotary.apply_inverse(x);
  if (!shape_.sizes.interleaved) return;
  const at::Tensor pairs = x.view({x.size(0), x.size(1), x.size(2), 2, -1}).transpose(3, 4).contiguous();
  x.copy_(pairs.view(x.sizes()));
}

KvCacheLayer LatentAttention::new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const {
  LOCKSTEP_CHECK(shape_.window == 0 || capacity <= shape_.window, "generation of ", capacity, " tokens, behind a window of ", shape_.window);
  const at::Tensor both = at::empty({slots, 1, capacity, shape_.sizes.kv_rank + shape_.sizes.rope}, options);
  return {.k = both, .v = both};
}

at::Tensor LatentAttention::decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  const int64_t batch = x.size(0), length = x.size(1);
  const Latents latents = project(x, nullptr);
  const at::Tensor q = parts_.q_up->forward(latents.q, nullptr).view({batch, length, shape_.heads, -1});
  const at::Tensor key = latents.key.view({batch, length, 1, -1});
  for (size_t b = 0; b < spans.size(); ++b) {
    for (const PositionRun& run : runs_of(spans[b], length)) {
      const auto rows = [&](const at::Tensor& heads) { return heads.narrow(0, static_cast<int64_t>(b), 1).narrow(1, run.row, run.count); };
      turn(rope_of(rows(q)), run.position);
      turn(rows(key), run.position);
    }
  }
  const at::Tensor row = at::cat({latents.kv.view({batch, length, 1, -1}), key}, 3);
  append_to_cache(row, row, cache, spans);
  if (!are_prompts(spans)) return parts_.out->forward(latent_decode(q, parts_.kv_weight, cache, spans, {shape_.sizes, shape_.scale}), nullptr);
  const at::Tensor kv = parts_.kv_up->forward(latents.kv, nullptr).view({batch, length, shape_.heads, -1});
  const Heads heads = with_keys(q, kv, key);
  if (const TokenPlaces* cut = cut_places(spans)) {
    nn::ContextAttention& context = cache.context->prompts();
    return parts_.out->forward(context.forward({.q = heads.q, .k = heads.k, .v = heads.v}, *cut, {.scale = shape_.scale}, nullptr), nullptr);
  }
  return parts_.out->forward(attention_core_forward(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2),
                                                    /*causal=*/true, nullptr, shape_.scale),
                             nullptr);
}

}  // namespace lockstep::nn
