// What each action of a rank takes on a cluster: on the compute lane in its parts, on links, between device and host. Actions that differ in
// the microbatch alone take the same.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/plan/time/rank_layers.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/predict/moves.h"

namespace lockstep::plan {

struct ActionTime {
  Breakdown work{};      // of the rank's compute lane; what is waited for inside a layer is part of it
  double seconds = 0;    // their sum
  double network = 0;    // of its calls, from when all ranks have come; SEND: until the data is there
  double exposed = 0;    // share of `network` that computing beside it loses; SEND: in which the sender computes nothing
  bool mutual = false;   // it is as much slower beside computing: both together take the longer of the two and that share of the shorter
  bool over_nics = false;  // else links of a domain carry it
  double copies = 0;     // between device, host and disk
  int stages = 1;        // of the pipeline that come to its calls
  double Breakdown::*term = &Breakdown::data;  // whose waits those for it are
};

// Adds the parts of one layer's action, and what the host adds to kernels.
void add_layer(const LayerSeconds::Part& part, Breakdown& work);

// Of one rank. Layout, program, placement, stack and options outlive it.
class ActionSeconds {
 public:
  ActionSeconds(const program::Layout& layout, const program::Program& program, const Placement& placement, const Stack& stack, const EstimateOptions& options,
                int rank, double speed = 1);
  ~ActionSeconds();

  // Host: host_share of kernels; a layer with experts takes expert_host at least, forward, as an input gradient, as a weight gradient.
  // STEP: memory traffic of the update, orthogonalised matrices at the cap; on CPUs NORM reads the gradients. Optimizer states on the host are updated at kHostBandwidth of its
  // node. Copies: PCIe, or the disk shared by the node's devices.
  ActionTime of(const program::Action& action);

 private:
  void add_work(const program::Action& action, ActionTime& time);
  double host_of(const program::Action& action, const LayerSeconds::Part& part) const;
  void add_calls(const program::Action& action, ActionTime& time);
  void add_call(const program::PlannedCall& call, bool by_tensor, ActionTime& time);
  void add_update(const program::Action& action, ActionTime& time);
  void add_moves(const program::Action& action, ActionTime& time);
  double update_flops(const program::Action& action);

  const program::Layout& layout_;
  const Cluster& cluster_;
  const Stack& stack_;
  const int rank_;
  RankLayers layers_;
  program::CallTable calls_;
  program::EffectTable effects_;
  arch::FlatLayout flat_;
  std::vector<arch::ParamSpec> table_{};  // where an optimizer takes whole matrices
  std::optional<program::MatrixPlan> matrices_;
  std::optional<program::ActionMoves> moves_;
};

inline constexpr double kHostBandwidth = 300e9;  // bytes/s of a node's host memory under streams: two sockets of eight channels of DDR4

}  // namespace lockstep::plan
