// A layer with explicit derivatives: the engine, not autograd, owns the order of work.
//   forward(x, saved) -> y;  backward_input(dy, saved) -> dx  (action I);  backward_weight(saved)  (action W);  B = I then W.
// What is kept for backward is exactly what stands in the layer's Saved struct.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/divided_pass.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

// A parameter as a layer sees it: views into the engine's flat buffers. Both undefined for an absent bias.
struct Parameter {
  at::Tensor value;  // compute dtype (fp32 or bf16)
  at::Tensor grad;   // fp32, same shape; backward adds to it, never overwrites. Undefined where nothing trains.
  bool defined() const { return value.defined(); }
};

// Looks parameters up by the names of arch::param_table, fused names included ("blocks.3.attention.qkv.weight" is the
// [(H + 2 KV) K, D] view over q, k, v). InternalError for an unknown name.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual Parameter parameter(std::string_view name) = 0;
};

// One microbatch; labels and positions travel with their tokens. B sequences of S tokens, or of each the part that is here,
// S/cp.
struct Microbatch {
  at::Tensor tokens;     // [B, S] int64
  at::Tensor targets;    // [B, S] int64: the next token; -100 = not counted
  int64_t step = 0;      // with first_sample: the key of dropout, the same for every layout
  int64_t first_sample = 0;  // global index of sequence 0 within the step's global batch
  int64_t valid_targets = -1;  // how many targets count: whoever makes the microbatch counts them, so that no device is asked
  at::Tensor sequence_targets{};  // [B] fp64: how many targets of each sequence count, on the device of `targets`. Whole sequences', whatever part is here
  std::shared_ptr<const TokenPlaces> places{};  // null: token s of each sequence stands at s and sees all before it
};

// How many targets [B, S] count; on the host.
inline int64_t count_valid(const at::Tensor& targets) {
  LOCKSTEP_CHECK(targets.is_cpu(), "targets are counted before they go to a device");
  return targets.ge(0).sum().item<int64_t>();
}

// The same of each sequence, [B] fp64, where `targets` are.
inline at::Tensor count_valid_of_sequences(const at::Tensor& targets) { return targets.ge(0).sum(1).to(at::kDouble); }

// What a layer keeps for backward; each layer derives its own.
struct Saved {
  virtual ~Saved() = default;
  at::Tensor loss;  // of the head, from its backward_input on: the sum of the losses of valid targets, fp32, 0-d
};

// A whole layer of the program: embedding, block, or head with loss. x and y: [B, S, D] in the compute dtype; a
// layer that derives may take and return some of the B S rows alone, [rows, D].
// The embedding ignores x (undefined). The head returns the sum of the losses of valid targets, fp32, 0-d; when it keeps, it
// returns nothing: its backward makes the loss as well (Saved::loss), and all of W's gradient is there after I (head.h).
// All gradients are of that sum; the one division by the global token count happens in the engine's NORM.
class Layer {
 public:
  virtual ~Layer() = default;
  // `saved` null = no backward will come (evaluation).
  virtual at::Tensor forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) = 0;
  // dy: [B, S, D]; undefined for the head (its gradient is 1). Returns dx; undefined for the embedding.
  virtual at::Tensor backward_input(const at::Tensor& dy, Saved& saved) = 0;
  virtual void backward_weight(Saved& saved) = 0;
  // Full recomputation: what forward(x, microbatch, &saved) would have kept, without the output. Same bits.
  virtual std::unique_ptr<Saved> recompute(const at::Tensor& x, const Microbatch& microbatch) {
    std::unique_ptr<Saved> saved;
    forward(x, microbatch, &saved);
    return saved;
  }
  // Selective recomputation: forget() drops what restore() computes again from the rest, with the same bits. Layers that
  // have nothing of the kind do nothing.
  virtual void forget(Saved&) {}
  virtual void restore(Saved&) {}
  // forward and backward_input in parts, with the first of them run; null: the layer has no experts. `saved`, which outlives the pass,
  // has what is kept once the pass has ended.
  virtual std::shared_ptr<DividedPass> begin_forward(const at::Tensor&, const Microbatch&, std::unique_ptr<Saved>*) { return nullptr; }
  virtual std::shared_ptr<DividedPass> begin_backward_input(const at::Tensor&, Saved&) { return nullptr; }
  // What its branches have counted since the last call (Branch::take_loads), one after the other.
  virtual std::vector<double> take_loads() { return {}; }
  virtual void set_last_loads(std::span<const double> /*routed*/) {}  // of its branches
  // Both (action B). A layer whose dx has to be waited for may run its weight gradients meanwhile.
  virtual at::Tensor backward(const at::Tensor& dy, Saved& saved) {
    at::Tensor dx = backward_input(dy, saved);
    backward_weight(saved);
    return dx;
  }
};

}  // namespace lockstep::nn
