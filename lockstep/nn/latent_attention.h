// Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): a linear `down` makes of a token a latent of Q numbers for its
// queries, one of C for its keys and values, and R numbers of a key; behind RMSNorms the latents become queries, and keys and values,
// of all heads. A head of q and k has N elements without positions and R with rotary ones; the R of k are the same for all heads. V is
// the width of a head of v.
//
// Where others have tokens of the same sequences either keys and values travel, or, as ContextAttention::moves_sources says, what they are made
// of: the latent behind its norm and the key that all heads share, C + R numbers of a token. Who gets them makes keys and values of them for
// the heads here, in forward and in backward_input, where then kv_up's weight gradient is made as well, all of it; backward_weight has nothing
// of it left. Keys and values are not kept then.
//
// Generation keeps C + R numbers of a token, not keys and values, and brings queries to the latents (latent_decode.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/arch/model_config.h"
#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/branch.h"
#include "lockstep/nn/context_attention.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/rotary.h"
#include "lockstep/nn/shared_rows.h"

namespace lockstep::nn {

class LatentAttention : public Branch {
 public:
  struct Shape {
    arch::LatentSizes sizes{};
    int64_t heads = 0;  // H, those that are here
    double scale = 0;   // of scores
    int64_t window = 0;  // tokens that a query sees, itself included; 0: all before it
  };
  struct Parts {
    std::unique_ptr<Linear> down;    // [D] -> [Q + C + R], of the rows that x has
    RmsNorm q_norm, kv_norm;         // [Q], [C]
    std::unique_ptr<Linear> q_up;    // [Q] -> [H (N + R)], of all rows
    std::unique_ptr<Linear> kv_up;   // [C] -> [H (N + V)], of all rows
    at::Tensor kv_weight;            // that of kv_up
    std::unique_ptr<Linear> out;     // [H V] -> [D]
    Rotary rotary;                   // of R elements
    std::unique_ptr<SharedRows> keys;  // who has which rows of the key that all heads share
    std::unique_ptr<ContextAttention> context{};  // who brings tokens of the same sequences together; null: all are here
    // Where latents travel: who has which rows of them; kv_up is a plain linear of the heads here then.
    std::unique_ptr<SharedRows> latents{};
  };
  struct Saved : Branch::Saved {
    Linear::Saved down;
    Norm::Saved q_norm, kv_norm;  // of the latents
    Linear::Saved q_up, kv_up;
    at::Tensor q, k, v;           // [B, S, H, N + R], the same, [B, S, H, V]; rotated. Backward overwrites them with their gradients.
    AttentionCoreSaved core;      // views of them, and the output that `out` keeps as its x
    std::unique_ptr<ContextAttention::Saved> context;  // in the place of `core`; where latents travel of k and v too, with those of this part
    const TokenPlaces* places = nullptr;
    Linear::Saved out;
  };

  LatentAttention(Shape shape, Parts parts);

  std::unique_ptr<Branch::Saved> new_saved() const override { return std::make_unique<Saved>(); }
  using Branch::forward;
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  // Done when it returns: what is communicated lies in front of `down`.
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  // The inputs of `down`, q_up and kv_up are dropped; restore normalises the latents anew.
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

  KvCacheLayer new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const override;
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) override;

 private:
  class Source;
  struct Latents {
    at::Tensor q, kv;  // behind their norms
    at::Tensor key;    // [..., R], not rotated
  };
  struct Heads {
    at::Tensor q, k, v;
  };
  Latents project(const at::Tensor& x, Saved* saved);
  at::Tensor mix(const at::Tensor& x, Saved* saved, const Sequences& sequences);  // what `out` takes
  // kv [B, S, H, N + V], key [B, S, 1, R], rotated.
  Heads with_keys(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key) const;
  at::Tensor core_forward(const Heads& heads, AttentionCoreSaved* saved) const;
  at::Tensor core_forward(const Heads& heads, const TokenPlaces* places, Saved* saved);
  ContextAttention::Options context_options() const { return {.scale = shape_.scale, .window = shape_.window}; }
  bool latents_travel() const { return parts_.context && parts_.context->moves_sources(); }
  // kv: of the tokens that are here, [B, S, C].
  at::Tensor travelling_forward(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key, const TokenPlaces* places, Saved* saved);
  void core_backward(const at::Tensor& dmixed, Saved& saved);  // leaves its gradients in q, k, v
  // From there to the gradients of q_up's and kv_up's outputs, and of the key, [B S, R].
  Latents heads_backward(Saved& saved) const;
  // The same at once, but of the latent, [B, S, C], in place of kv_up's output.
  Latents travelling_backward(const at::Tensor& dmixed, Saved& saved);
  at::Tensor latents_backward(Latents d, Saved& saved);  // and on to the gradient of what `down` made

  at::Tensor rope_of(const at::Tensor& heads) const { return heads.narrow(3, shape_.sizes.nope, shape_.sizes.rope); }
  // x [B, S, heads, R], in place; in the order of a rotated half (rotary.h) then.
  void turn(const at::Tensor& x, int64_t start = 0) const;
  void turn_at(const at::Tensor& x, const TokenPlaces* places) const;
  void turn_backward(const at::Tensor& x, const TokenPlaces* places) const;
  void pairs_to_halves(const at::Tensor& x) const;  // where they are interleaved

  const Shape shape_;
  Parts parts_;
};

}  // namespace lockstep::nn
