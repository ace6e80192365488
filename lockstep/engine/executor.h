// The interpreter of step programs: a loop over handlers, one for each action kind. What an action touches is joined before its
// handler runs (program/effects.h). Evaluations and updates that are made again are lists too: there is no other loop.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/gradient_reducer.h"
#include "lockstep/engine/groups.h"
#include "lockstep/engine/layer_runner.h"
#include "lockstep/engine/matrix_updates.h"
#include "lockstep/engine/parameter_gather.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/step_end.h"
#include "lockstep/engine/step_recorder.h"

namespace lockstep::engine {

// One rank's executor. Owns the parameter store, the layers and what they keep for backward.
class Executor {
 public:
  // `groups` outlives the executor. Parameters start with the initial values of the seed.
  Executor(ExecutorOptions options, Groups& groups);

  // One optimizer step over this rank's microbatches, in order. `step` counts from 1 (bias correction). Of a device the host
  // waits twice: for the losses at LOSS, for the norm at NORM.
  // A gradient that is not finite is found before it is reduced. All ranks alike then leave the step out, or throw
  // DivergedError LS5001; both name rank and parameter, and weights and the optimizer's slots are untouched. PeerLostError from
  // communication; of a call on a GPU that was aborted it comes before anything is updated (comm::Communicator::confirm).
  // OutOfMemory (memory_tracker.h) where memory runs short, also for memory.device_limit.
  // With post-validation (program/passes/post_validation.h) and `may_pend` the result may be pending: the next step() validates it,
  // and take_validated() then has it, or settle() does. DivergedError comes from there as well.
  StepResult step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend = false);
  // Where a step is pending: waits for the other ranks and makes its update final. All ranks alike; needed before anything
  // reads parameters.
  std::optional<StepResult> settle();
  std::optional<StepResult> take_validated() { return end_.take_validated(); }

  // With [moe] scope "last_step": the loads of the last step (StepResult::loads), which the next one goes by; empty before the first.
  // A run that goes on sets them.
  const std::vector<double>& last_loads() const { return last_loads_; }
  void set_last_loads(std::vector<double> loads);

  // The next step is timed, action by action, from `start`: one moment for all ranks. take_trace() has the outcome.
  void trace_next_step(std::chrono::steady_clock::time_point start);
  plan::StepTrace take_trace();

  // Runs `load` so that the tensors it makes are accounted as this rank's activations.
  template <typename Load>
  auto load(Load load_microbatches) {
    const MemoryScope scope = memory_.scope();
    return load_microbatches();
  }

  // Sum of losses and valid tokens of one microbatch on this rank, without gradients; zeros where another rank of the same
  // copy of the model counts them. Collective over the stages of a pipeline, and with zero 3 over the ranks that share out
  // parameters: all of them call it equally often.
  std::pair<double, int64_t> evaluate(const nn::Microbatch& microbatch);

  // The gradient of the mean loss of the last step, before clipping, and the value: whole parameters (rows of the store's
  // table), put together from the pieces and parts of all ranks that hold them; of an expert on the ranks that have it in their
  // tables. Collective over the ranks of a stage, each with the same row. On a parameter server's worker the gradient is only its
  // own part of the sum.
  at::Tensor whole_gradient(int param);
  at::Tensor whole_value(int param);
  // The same of any state that the rank owns (ParameterStore::state_part).
  at::Tensor whole_state(int param, StateKind kind);

  // With all parameters that were on their way.
  ParameterStore& store();
  const program::Program& program() const { return program_; }
  const program::Layout& layout() const { return options_.layout; }
  at::ScalarType compute_dtype() const { return store_.dtype(); }
  // Largest bytes per category since the start, measured as program/predict/memory.h states them.
  program::MemoryBytes measured_memory() const { return memory_.measured(); }

 private:
  // Actions that run one after the other.
  struct List {
    std::span<const program::Action> actions;
    bool observed = false;  // by before_action and the recorder
  };
  void run(const List& list);
  void run(const program::Action& action);
  std::map<std::string, double> take_exposed_of_layers();  // "tp all_reduce"
  at::Tensor whole(int param, const at::Tensor& part);
  // Of the pieces of the ranks that hold it together.
  at::Tensor whole_of_pieces(const arch::ParamSpec& spec, const at::Tensor& piece);

  ExecutorOptions options_;
  Groups& groups_;
  program::Program program_, evaluation_;
  program::EffectTable effects_;
  program::CallTable calls_;
  const List step_, redo_, settle_, evaluate_;  // redo_: all from STEP on; settle_: VALIDATE alone
  StepMemory memory_;
  ParameterStore store_;
  ExposedWaits waits_;
  Joins joins_;
  std::unique_ptr<CopyQueue> copies_;               // null where nothing is offloaded
  std::unique_ptr<parallel::TensorGroup> tensor_;   // null where the axis has one rank
  std::unique_ptr<parallel::ExpertGroup> experts_;  // null where this rank has all experts, whole
  std::unique_ptr<parallel::ContextGroup> context_;  // null where it has whole sequences
  StepState state_;
  const StepView view_;
  ParameterGather gather_;
  GradientReducer gradients_;
  LayerRunner layers_;
  MatrixUpdates matrices_;
  StepEnd end_;
  Handlers handlers_;
  std::vector<double> last_loads_;
  std::unique_ptr<StepRecorder> recorder_;  // null: the step is not timed
};

}  // namespace lockstep::engine
