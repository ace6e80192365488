// Causal self-attention with its two projections; grouped key/value heads, a sliding window, sinks and rotary positions where the model has
// them. Tokens stand where Sequences::places says, and see what it says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/branch.h"
#include "lockstep/nn/context_attention.h"
#include "lockstep/nn/head_norm.h"
#include "lockstep/nn/rotary.h"

namespace lockstep::nn {

class Attention : public Branch {
 public:
  struct Shape {
    int64_t heads = 0;     // H
    int64_t kv_heads = 0;  // KV, divides H
    int64_t head_size = 0;
    int64_t window = 0;    // tokens that a query sees, itself included; 0: all before it
    double scale = 0;      // of scores; 0: 1 / sqrt(head_size)
  };
  struct Saved : Branch::Saved {
    Linear::Saved qkv;
    at::Tensor projected;     // [B, S, (H + 2 KV) K]: q | k | v, rotated. Backward overwrites it with its gradient.
    QueryKeyNorm::Saved norm;
    AttentionCoreSaved core;  // views of `projected`, and the output that `out` keeps as its x
    std::unique_ptr<ContextAttention::Saved> context;  // in the place of `core` where others have tokens of the sequences
    const TokenPlaces* places = nullptr;
    at::Tensor dsinks;  // [H] fp32: from backward_input, for W
    Linear::Saved out;
  };

  // qkv: [D] -> [(H + 2 KV) K]; out: [H K] -> [D]; no rotary: positions enter elsewhere; norm: null = none. context: who
  // brings tokens of the same sequences together; null: all are here. sinks [H]: a score that every query sees; undefined: none.
  Attention(Shape shape, std::unique_ptr<Linear> qkv, std::optional<Rotary> rotary, std::unique_ptr<Linear> out,
            std::unique_ptr<QueryKeyNorm> norm = nullptr, std::unique_ptr<ContextAttention> context = nullptr, Parameter sinks = {});

  std::unique_ptr<Branch::Saved> new_saved() const override { return std::make_unique<Saved>(); }
  using Branch::forward;
  // `qkv` makes all rows of the sequences, whatever x has of them.
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  // The input of `qkv` is dropped, and normalised heads are taken back to what they were; restore normalises and rotates
  // anew. Projections and the core's output stay.
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

  KvCacheLayer new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const override;
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // [B, S, heads, K], views
  };
  Heads split(const at::Tensor& projected) const;
  at::Tensor project(const at::Tensor& x, Saved* saved, const Sequences& sequences);
  at::Tensor mix(const at::Tensor& projected, Saved* saved, const Sequences& sequences);  // what `out` takes
  ContextAttention::Options options() const { return {.scale = shape_.scale, .window = shape_.window, .sinks = sinks_.value}; }
  at::Tensor core_forward(const Heads& heads, const TokenPlaces* places, Saved* saved);
  at::Tensor rotated(const at::Tensor& projected) const;  // the part rotary positions act on: q | k as one view
  // Of query and key heads, in place: their norms, then the rotation, each where the model has it.
  void place(const at::Tensor& projected, const TokenPlaces* places, Saved* saved);
  void normalise(const at::Tensor& projected, Saved* saved);
  at::Tensor core_backward(const at::Tensor& dy, Saved& saved);  // the gradient of `projected`, in its place

  Shape shape_;
  std::unique_ptr<Linear> qkv_;
  std::optional<Rotary> rotary_;
  std::unique_ptr<Linear> out_;
  std::unique_ptr<QueryKeyNorm> norm_;
  std::unique_ptr<ContextAttention> context_;
  Parameter sinks_;
};

}  // namespace lockstep::nn
