// Attention of sequences whose tokens lie on several ranks: who brings queries, keys and values together. parallel/context has the ways;
// with all tokens on one rank there is none of it (attention_core.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

// What keys and values are made of, where that is less than they are (the latents of latent_attention.h): it travels in their place.
class KeySource {
 public:
  struct Made {
    at::Tensor k;  // [B, T, KV, K]; views with contiguous last dim
    at::Tensor v;  // [B, T, KV, V]
  };
  virtual ~KeySource() = default;
  // Of a block of T tokens of each sequence, [B, T, n] contiguous: keys and values, rotated. The block is any rank's.
  virtual Made make(const at::Tensor& block) = 0;
  // `gradients` of make(block), fp32 and contiguous. Adds that of the block to `sum`, fp32, and those of parameters to theirs.
  virtual void backward(const at::Tensor& block, const Made& gradients, const at::Tensor& sum) = 0;
};

class ContextAttention {
 public:
  struct Saved {
    virtual ~Saved() = default;
  };
  struct Heads {
    at::Tensor q;  // [B, T, H, K], rotated; views of one memory or of several
    at::Tensor k;  // [B, T, KV, K]
    at::Tensor v;  // [B, T, KV, V]
  };
  struct Options {
    double scale = 0;    // of scores; 0: 1 / sqrt(K)
    int64_t window = 0;  // tokens that a query sees, itself included; 0: all before it
    at::Tensor sinks{};  // [H], a further score of every query (attention_sinks.h); undefined: none
  };
  virtual ~ContextAttention() = default;

  // T tokens of each sequence are here -> [B, T, H V] contiguous, in the dtype of q. `saved` null: nothing is kept. Every rank of cp
  // makes the same calls.
  virtual at::Tensor forward(const Heads& heads, const TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) = 0;
  // dout [B, T, H V] contiguous. Writes to `grads`, which may be the memory of q, k and v; dsinks is that of the queries here. Releases what
  // was kept.
  virtual void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const AttentionCoreGrads& grads) = 0;

  // Whether what keys and values are made of travels in their place. Then forward_of and backward_of are called, and not the above.
  virtual bool moves_sources() const { return false; }
  // own [B, T, n] contiguous: what keys and values of the tokens here are made of.
  virtual at::Tensor forward_of(KeySource&, const at::Tensor& /*q*/, const at::Tensor& /*own*/, const TokenPlaces&, const Options&,
                                std::unique_ptr<Saved>*) {
    throw InternalError("what keys are made of does not travel here");
  }
  // Writes to dq [B, T, H, K], which may be the memory of q -> the gradient of `own`, fp32.
  virtual at::Tensor backward_of(KeySource&, const at::Tensor& /*dout*/, std::unique_ptr<Saved>, const at::Tensor& /*dq*/) {
    throw InternalError("what keys are made of does not travel here");
  }
};

}  // namespace lockstep::nn
