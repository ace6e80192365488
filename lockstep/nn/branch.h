// What a block adds to its x: attention, an MLP, or a kind of the user's own. With explicit derivatives, as layer.h has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/nn/attention_decode.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

// The rows of a microbatch: B sequences of S tokens, one after the other; of sequences that are held in parts, S is the length of the part
// that is here.
struct Sequences {
  int64_t count = 0;
  int64_t length = 0;
  at::Tensor valid{};  // [B] fp64: valid targets of each sequence, whole. Undefined: no loss of a branch's own is made.
  const TokenPlaces* places = nullptr;  // null: whole sequences of one document each. Outlives what is kept of the pass.
};

class Branch {
 public:
  // What is kept for backward; each kind derives its own.
  struct Saved {
    virtual ~Saved() = default;
  };
  virtual ~Branch() = default;
  virtual std::unique_ptr<Saved> new_saved() const = 0;

  // x [B, S, D], or its rows alone where the first linear takes them so -> the like. `saved` null: nothing is kept.
  virtual at::Tensor forward(const at::Tensor& x, Saved* saved, const Sequences& sequences) = 0;
  at::Tensor forward(const at::Tensor& x, Saved* saved) {  // x [B, S, D]
    return forward(x, saved, {.count = x.size(0), .length = x.size(1), .valid = {}});
  }
  // As those of Linear; each takes the one of the same name of its first linear. The result is the caller's alone, who may
  // write into it.
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved) = 0;
  virtual Pending start_backward_input(const at::Tensor& dy, Saved& saved) = 0;
  virtual void backward_weight(Saved& saved) = 0;

  // Full recomputation: what forward(x, &saved, sequences) keeps, without the last linear map, whose output nobody needs.
  virtual void recompute(const at::Tensor& x, Saved& saved, const Sequences& sequences) = 0;
  // Selective recomputation: forget drops what restore computes again from the same x, with the same bits.
  virtual void forget(Saved& saved) = 0;
  virtual void restore(const at::Tensor& x, Saved& saved) = 0;

  // forward and backward_input in parts (divided_pass.h), with the first of them run; null: nothing leaves the branch for experts.
  // `saved` outlives the pass.
  virtual bool divides() const { return false; }
  virtual std::shared_ptr<DividedPass> begin_forward(const at::Tensor&, Saved*, const Sequences&) { return nullptr; }
  virtual std::shared_ptr<DividedPass> begin_backward_input(const at::Tensor&, Saved&) { return nullptr; }

  // What the branch counts while it trains, as sums since the last call: experts.h says which numbers. A microbatch counts with its
  // backward_input, so once in every mode of recomputation and never in evaluation.
  virtual std::vector<double> take_loads() { return {}; }
  // Of the step before, over its whole batch: assignments to each expert [E]; empty where there was none.
  virtual void set_last_loads(std::span<const double> /*routed*/) {}

  // Generation: room for `slots` sequences of up to `capacity` tokens; none where no token sees another.
  virtual KvCacheLayer new_cache(int64_t, int64_t, const at::TensorOptions&) const { return {}; }
  // x [B, T, D], sequence b at spans[b], is appended to the cache and sees what is there.
  virtual at::Tensor decode(const at::Tensor& x, const KvCacheLayer&, std::span<const CacheSpan>) { return forward(x, nullptr); }
};

}  // namespace lockstep::nn
