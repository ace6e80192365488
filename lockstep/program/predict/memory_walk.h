// What is alive while the actions of one rank run, by category: inside program/ alone, behind memory.h.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/program/placement.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {

class MemoryWalk {
 public:
  MemoryWalk(const Layout& layout, const Program& program, int rank);

  // Before the first action: what the rank holds all the time, and the tokens of the step.
  const MemoryArray& live() const { return live_; }
  // Walks over one action.
  MemoryPoint step(const Action& action);
  // InternalError where something is kept for a backward that never came, or gathered and never dropped.
  void check_end() const;

 private:
  using Key = std::pair<int, int>;  // layer, microbatch
  // Between two layers: what the layer's F, or its B or I, is to take.
  struct Flow {
    int layer = 0;
    int microbatch = 0;
    bool backward = false;
    auto operator<=>(const Flow&) const = default;
  };
  using Channel = std::pair<int, bool>;  // rank that it leads to, forward
  int64_t& live(MemoryCategory category) { return live_[static_cast<size_t>(category)]; }
  const arch::LayerCost& cost(const Action& action) const { return costs_.at(static_cast<size_t>(action.layer)); }

  void hold_states();
  void apply(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action);
  void recompute(const Action& action);
  void send(const Action& action);
  void receive(const Action& action);
  void wait_for_sends();
  void hand_on(const Flow& flow, int64_t bytes);
  void take_flow(const Flow& flow);
  void take_gradient(const Action& action);
  int64_t input_bytes(const Action& action) const;
  int64_t& kept(const Action& action);
  void open_gradients(const Action& action);
  void take(MemoryCategory category, std::map<int, int64_t>& from, int key, int64_t bytes);
  void drop(MemoryCategory category, std::map<int, int64_t>& from, int key);
  void move(const Action& action);
  void move_unit(const Action& action, MemoryCategory category, std::map<int, int64_t>& from, int64_t element);
  void move_activation(const Action& action);
  void stage(const Action& action);
  void shard_gradients(const Action& action);
  int64_t sent_copy(const Action& action) const;

  const Layout& layout_;
  const Program& program_;
  int rank_;
  std::vector<arch::ParamSpec> table_;
  std::vector<arch::LayerCost> costs_;
  arch::FlatLayout flat_;
  HostPlan host_;
  std::map<int, int64_t> units_;     // layer that owns it -> elements
  MemoryArray live_{};
  std::map<Flow, int64_t> flowing_;  // outputs and gradients that nobody took yet, and buffers of what is to come
  std::map<Channel, std::deque<int64_t>> sent_;  // the last Program::channel_depth of each, until they have gone
  std::map<Key, int64_t> kept_;      // for backward, on the device or the host; after I what W needs
  std::map<int, int64_t> gathered_;  // unit -> bytes between UNSHARD and RESHARD
  std::map<int, int64_t> fetched_;   // unit -> bytes between FETCH and EVICT
  std::map<int, int64_t> from_disk_; // unit -> bytes of its states between FETCH and EVICT, on the host
  std::map<Key, int64_t> on_host_;   // inputs of layers, until they are used again
  int64_t leaving_ = 0;              // of the one that went last: still on the device
  std::map<int, int64_t> open_;      // unit -> bytes of its transient gradient
  std::map<int, int64_t> staged_;    // bucket -> bytes of gradients on their way
  // Of the action that runs, when the device holds most: beyond activations, and where said these themselves. What I
  // leaves for W is in its workspace until then.
  int64_t workspace_ = 0;
  int64_t activations_ = 0;
};

}  // namespace lockstep::program
