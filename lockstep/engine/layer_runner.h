// F, B, I, W and RECOMPUTE of a rank's layers, whole or in parts with DISPATCH_* and COMBINE_* between these, and what they hand to
// each other and to the stages beside them: SEND_*, RECV_*, FETCH and EVICT of activations.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/engine/activation_offload.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/step_state.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::engine {

class LayerRunner {
 public:
  // What it works with besides; all outlive it.
  struct Parts {
    StepMemory& memory;
    CopyQueue* copies;                // null where nothing is offloaded
    parallel::TensorGroup* tensor;    // null where the axis has one rank
    parallel::ExpertGroup* experts;   // null where this rank has all experts, whole
    parallel::ContextGroup* context;  // null where this rank has whole sequences
    int depth;                        // of a channel: Program::channel_depth
  };
  LayerRunner(const StepView& step, const Parts& parts);

  void add_handlers(Handlers& handlers);
  // Begins to fill the input of a stage, or the gradient of its output.
  Started receive(const program::Action& action);

  // Of the ranks that hold one copy of the model, this one tells the loss: every rank of a tp group has the whole loss of its
  // tokens, the first one of those that hold the head counts. Ranks of cp have other tokens, and count their own.
  bool counts_loss() const { return training_.back() && (!with_.tensor || with_.tensor->rank() == 0); }
  // What layers with experts have counted since the last call, each at its program::Layout::load_offset.
  std::vector<double> take_loads();
  // The loads of the step before (StepResult::loads), or none: what layers with experts may go by, in evaluations too.
  void set_last_loads(std::span<const double> loads);
  // What the head has handed on in an evaluation; undefined on a rank without it.
  at::Tensor take_output();
  void check_empty() const;
  // Drops what a step that is broken off has left.
  void abandon();

 private:
  using Key = std::pair<int, int>;  // layer, microbatch
  using Layers = std::vector<std::unique_ptr<nn::Layer>>;  // null where another rank holds it
  // What a layer takes next of a microbatch: its input, or the gradient of its output.
  struct Flow {
    int layer = 0;
    int microbatch = 0;
    bool gradient = false;
    auto operator<=>(const Flow&) const = default;
  };
  // A tensor on its way to a neighbour is alive until it has been sent: at most `depth` of a channel, since a further one waits
  // for the first of them. What was sent first arrives first.
  struct Sent {
    at::Tensor tensor;
    comm::Work work;
  };
  Layers build(bool training) const;
  void forward(const program::Action& action);
  void recompute(const program::Action& action);
  void backward(const program::Action& action);
  // Of a divided layer (layer_parts.cpp).
  void forward_part(const program::Action& action);
  void backward_part(const program::Action& action);
  Started exchange(const program::Action& action);
  Started fetch(const program::Action& action);
  void evict(const program::Action& action);
  Started send(const program::Action& action);
  void wait_for_sends();
  at::Tensor take(const Flow& flow);  // undefined: the layer before it in this direction has handed on nothing

  const StepView step_;
  const Parts with_;
  std::unique_ptr<ActivationOffload> offload_;  // null where activations stay
  Layers training_, evaluation_;                // over the same parameters, the second without dropout
  std::map<Flow, at::Tensor> flowing_;          // on this rank, or on its way to it
  std::map<program::GroupRef, std::deque<Sent>> sent_;  // by channel
  std::map<Key, std::unique_ptr<nn::Saved>> saved_;
  std::map<Key, at::Tensor> inputs_;            // of layers that full recomputation runs again
  std::map<Flow, std::shared_ptr<nn::DividedPass>> passes_;  // between two parts
};

}  // namespace lockstep::engine
