// Causal self-attention with its two projections; grouped key/value heads and rotary positions where the model has
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/attention_decode.h"
#include "lockstep/nn/head_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/rotary.h"

namespace lockstep::nn {

// Of a whole microbatch: B sequences of S tokens.
struct Sequences {
  int64_t count = 0;
  int64_t length = 0;
};

class Attention {
 public:
  struct Shape {
    int64_t heads = 0;     // H, of this rank
    int64_t kv_heads = 0;  // KV, divides H
    int64_t head_size = 0;
  };
  struct Saved {
    Linear::Saved qkv;
    at::Tensor projected;     // [B, S, (H + 2 KV) K]: q | k | v, rotated. Backward overwrites it with its gradient.
    HeadNorm::Saved head_norm;
    AttentionCoreSaved core;  // views of `projected`, and the output that `out` keeps as its x
    Linear::Saved out;
  };

  // qkv: [D] -> [(H + 2 KV) K]; out: [H K] -> [D]; no rotary: positions enter elsewhere; head_norm: null = none.
  Attention(Shape shape, std::unique_ptr<Linear> qkv, std::optional<Rotary> rotary, std::unique_ptr<Linear> out,
            std::unique_ptr<HeadNorm> head_norm = nullptr);

  at::Tensor forward(const at::Tensor& x, Saved* saved);  // [B, S, D] -> [B, S, D]
  // The same where x may hold a part of the rows: [B S / tp, D] -> [B S / tp, D].
  at::Tensor forward(const at::Tensor& x, Saved* saved, const Sequences& sequences);
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved);
  Pending start_backward_input(const at::Tensor& dy, Saved& saved);  // see Linear
  void backward_weight(Saved& saved);

  // Selective recomputation: forget drops the input of `qkv` and takes normalised heads back to what they were; restore
  // is given that input again and normalises and rotates anew. Projections and the core's output stay.
  void forget(Saved& saved);
  void restore(const at::Tensor& x, Saved& saved);

  // Generation: x [B, T, D], sequence b at spans[b], is appended to the cache and sees what is there.
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans);

 private:
  struct Heads {
    at::Tensor q, k, v;  // [B, S, heads, K], views
  };
  Heads split(const at::Tensor& projected) const;
  at::Tensor rotated(const at::Tensor& projected) const;  // the part rotary positions act on: q | k as one view
  // Of query and key heads, in place: their norms, then the rotation, each where the model has it.
  void place(const at::Tensor& projected, Saved* saved);
  void normalise(const at::Tensor& projected, Saved* saved);
  at::Tensor core_backward(const at::Tensor& dy, Saved& saved);  // the gradient of `projected`, in its place

  Shape shape_;
  std::unique_ptr<Linear> qkv_;
  std::optional<Rotary> rotary_;
  std::unique_ptr<Linear> out_;
  std::unique_ptr<HeadNorm> head_norm_;
};

}  // namespace lockstep::nn
