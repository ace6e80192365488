// What an executor is made of and given, and the step that runs, as its handlers share it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/finite_watch.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/nn/layer.h"

namespace lockstep::engine {

// Sees every action before it runs. A seam for tests, which break a rank or its gradients there.
using ActionObserver = std::function<void(const program::Action& action, ParameterStore& store)>;

// Sees what this rank's layers with experts tell of a step before it is summed over the ranks. Another such seam.
using LoadsObserver = std::function<void(std::vector<double>& loads)>;

struct ExecutorOptions {
  program::Layout layout;
  at::Device device = at::kCPU;
  uint64_t seed = 1234;
  double max_grad_norm = 1.0;  // 0 = no clipping
  bool skip_nonfinite = false;  // a gradient that is not finite: the step is left out, instead of DivergedError
  std::filesystem::path disk_path{};  // takes what the layout offloads to disk
  ActionObserver before_action{};
  LoadsObserver before_loads{};
  MarkNonFinite mark_nonfinite{};  // a seam for tests: FiniteWatch
};

struct StepResult {
  bool pending = false;     // begun and not yet validated: loss, tokens and norm are not known (Executor::settle)
  double loss = 0;          // mean over the valid tokens of the global batch
  int64_t tokens = 0;       // valid ones, of all ranks
  double grad_norm = 0;     // of the mean loss, before clipping
  double clip_factor = 1;
  std::vector<double> loads{};  // of layers with experts, sums over all ranks (program::Layout::load_offset, nn/experts.h)
  double aux_loss = 0;          // of these layers, added up: means over the valid tokens, without their coefficients
  double z_loss = 0;
  double exposed_comm_seconds = 0;  // this rank waited for communication
  std::map<std::string, double> exposed_by{};  // the same by what it waited for: "tp all_reduce", "dp reduce_grad"
  CopyTotals copies{};  // between host and device
  CopyTotals disk{};    // of states on disk
  std::string skipped{};  // where the step was left out: whose gradient was not finite, "rank 1: norm.weight"
};

// What the interpreter does behind an action.
enum class Outcome {
  kGoesOn,     // the next action of the list
  kLeftOut,    // the step ends here; on all ranks after the same action, so that none waits for the rest
  kTakenBack,  // the update of the step before is made again, then this list is begun again
};

struct StepState {
  const std::vector<nn::Microbatch>* microbatches = nullptr;
  int64_t step = 0;  // from 1
  double lr = 0;
  bool training = true;         // false: an evaluation, nothing is kept for backward
  bool pends = false;           // it will be validated in the next one
  double gradient_scale = 1;    // what STEP multiplies the summed gradients with
  Outcome outcome = Outcome::kGoesOn;
  StepResult result{};
  std::vector<at::Tensor> losses{};  // per microbatch, 0-d: the sum of valid targets' losses

  optim::StepPoint point() const { return {.lr = lr, .number = step, .grad_scale = gradient_scale}; }
  const nn::Microbatch& microbatch(int index) const { return microbatches->at(static_cast<size_t>(index)); }
};

// What a handler sees of it, and of the rank.
struct StepView {
  const ExecutorOptions& options;
  const program::Layout& layout;
  StepState& state;
  ParameterStore& store;
  Groups& groups;
  program::CallTable& calls;
  ExposedWaits& waits;

  // The one call of an action that must make one on this rank.
  const program::PlannedCall& planned(const program::Action& action) const {
    const program::PlannedCall* call = calls.only(action);
    LOCKSTEP_CHECK(call != nullptr, program::action_name(action.kind), " of unit ", action.unit, ", stage ", action.stage, " makes no call");
    return *call;
  }
  Started start(const program::PlannedCall& call, const CallTensors& tensors, const char* what) const {
    return waiting_for(execute(groups, call, tensors), waits, what);
  }
};

// Counted by whoever made the microbatch.
inline int64_t valid_targets(const nn::Microbatch& microbatch) {
  LOCKSTEP_CHECK(microbatch.valid_targets >= 0, "a microbatch whose valid targets nobody has counted");
  return microbatch.valid_targets;
}

}  // namespace lockstep::engine
