// The interpreter of step programs: one handler per action kind, run in list order. There is no other training loop.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/engine/activation_links.h"
#include "lockstep/engine/activation_offload.h"
#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/finite_watch.h"
#include "lockstep/engine/gradient_reducer.h"
#include "lockstep/engine/groups.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/parameter_gather.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/state_copy.h"
#include "lockstep/engine/step_recorder.h"
#include "lockstep/nn/layer.h"
#include "lockstep/parallel/tensor/group.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

// Sees every action before it runs. A seam for tests, which break a rank or its gradients there.
using ActionObserver = std::function<void(const program::Action& action, ParameterStore& store)>;

struct ExecutorOptions {
  program::Layout layout;
  at::Device device = at::kCPU;
  uint64_t seed = 1234;
  optim::AdamWOptions adamw{};
  double max_grad_norm = 1.0;  // 0 = no clipping
  bool skip_nonfinite = false;  // a gradient that is not finite: the step is left out, instead of DivergedError
  std::filesystem::path disk_path{};  // takes what the layout offloads to disk
  ActionObserver before_action{};
  MarkNonFinite mark_nonfinite{};  // a seam for tests: FiniteWatch::mark_by
};

struct StepResult {
  bool pending = false;     // begun and not yet validated: loss, tokens and norm are not known (Executor::settle)
  double loss = 0;          // mean over the valid tokens of the global batch
  int64_t tokens = 0;       // valid ones, of all ranks
  double grad_norm = 0;     // of the mean loss, before clipping
  double clip_factor = 1;
  double exposed_comm_seconds = 0;  // this rank waited for communication
  std::map<std::string, double> exposed_by{};  // the same by what it waited for: "tp all_reduce", "dp reduce_grad"
  CopyTotals copies{};  // between host and device
  CopyTotals disk{};    // of states on disk
  std::string skipped{};  // where the step was left out: whose gradient was not finite, "rank 1: norm.weight"
};

// One rank's executor. Owns the parameter store, the layers and what they keep for backward.
class Executor {
 public:
  // `groups` outlives the executor. Parameters start with the initial values of the seed.
  Executor(ExecutorOptions options, Groups& groups);
  ~Executor();

  // One optimizer step over this rank's microbatches, in order. `step` counts from 1 (bias correction). Of a device the host
  // waits twice: for the losses at LOSS, for the norm at NORM.
  // A gradient that is not finite is found before it is reduced. All ranks alike then leave the step out, or throw
  // DivergedError LS5001; both name rank and parameter, and weights and moments are untouched. PeerLostError from
  // communication; of a call on a GPU that was aborted it comes before anything is updated (comm::Communicator::confirm).
  // OutOfMemory (out_of_memory.h) where memory runs short, also for memory.device_limit.
  // With post-validation (program/post_validation.h) and `may_pend` the result may be pending: the next step() validates it,
  // and take_validated() then has it, or settle() does. DivergedError comes from there as well.
  StepResult step(const std::vector<nn::Microbatch>& microbatches, int64_t step, double lr, bool may_pend = false);
  // Where a step is pending: waits for the other ranks and makes its update final. All ranks alike; needed before anything
  // reads parameters.
  std::optional<StepResult> settle();
  std::optional<StepResult> take_validated() { return std::exchange(validated_, std::nullopt); }

  // The next step is timed, action by action, from `start`: one moment for all ranks. take_trace() has the outcome.
  void trace_next_step(std::chrono::steady_clock::time_point start);
  plan::StepTrace take_trace();

  // Runs `load` so that the tensors it makes are accounted as this rank's activations.
  template <typename Load>
  auto load(Load load_microbatches) {
    const MemoryScope scope(memory_, MemoryCategory::kActivations);
    return load_microbatches();
  }

  // Sum of losses and valid tokens of one microbatch on this rank, without gradients; zeros where another rank of the same
  // copy of the model counts them. Collective over the stages of a pipeline, and with zero 3 over the ranks that share out
  // parameters: all of them call it equally often.
  std::pair<double, int64_t> evaluate(const nn::Microbatch& microbatch);

  // The gradient of the mean loss of the last step, before clipping, and the value: whole parameters (rows of the store's
  // table), put together from the pieces and parts of all ranks that hold them. Collective over the axes dp_shard and tp. On a
  // parameter server's worker the gradient is only its own part of the sum.
  at::Tensor whole_gradient(int param);
  at::Tensor whole_value(int param);
  // The same of any state that the rank owns (ParameterStore::state_part).
  at::Tensor whole_state(int param, StateKind kind);

  // With all parameters that were on their way.
  ParameterStore& store();
  const program::Program& program() const { return program_; }
  const program::Layout& layout() const { return options_.layout; }
  bool is_server() const;
  at::ScalarType compute_dtype() const { return options_.layout.precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat; }
  // Largest bytes per category since the start, measured as program/memory.h states them.
  program::MemoryBytes measured_memory() const;

 private:
  // Activations and workspace share one counter while a step runs: note_* tell them apart at the borders of actions.
  static constexpr MemoryCategory kStepMemory = MemoryCategory::kActivations;
  using Key = std::pair<int, int>;  // layer, microbatch
  struct Units {
    std::vector<int> read, written;
  };

  void run(const program::Action& action);
  void handle(const program::Action& action);
  void forward(const program::Action& action);
  void recompute(const program::Action& action);
  void backward(const program::Action& action);
  void read_parameters(const program::Action& action);
  const Units& units(const program::Action& action);
  void fetch(const program::Action& action);
  void evict(const program::Action& action);
  void run_list();
  struct LossSums {
    at::Tensor sums{};  // loss, tokens, ranks with a gradient that is not finite
    comm::Work work{};
  };
  // executor_loss.cpp
  double read_device();
  LossSums start_loss(bool blocking);
  void reduce_loss();
  void norm();
  void scale(double norm, StepResult& result);
  int64_t tokens_here() const;
  static int64_t valid_targets(const nn::Microbatch& microbatch);
  void update(const program::Action& action);
  const std::vector<optim::AdamWParameter>& updated(int layer);
  void nonfinite(int64_t step);
  // executor_post_validation.cpp
  void start_tokens();
  double wait_for_tokens();
  void validate();
  StepResult outcome();
  void forget_forward();
  void update_again();
  int64_t row_of_model(int param) const;
  at::Tensor whole(int param, const at::Tensor& part);
  void note_workspace(int64_t baseline);
  void note_activations();
  void note_waits();
  void receive(const program::Action& action, const nn::Microbatch& microbatch);
  void send(const program::Action& action);
  at::Tensor take_input(const program::Action& action);
  bool counts_loss() const;  // of the ranks that hold one copy of the model, this one tells the loss

  ExecutorOptions options_;
  Groups& groups_;
  program::Program program_, evaluation_;
  std::shared_ptr<MemoryAccount> memory_;
  ParameterStore store_;
  ExposedWaits waits_;
  std::unique_ptr<CopyQueue> copies_;               // null where nothing is offloaded
  std::unique_ptr<ActivationOffload> activations_;  // null where activations stay
  ParameterGather gather_;
  GradientReducer gradients_;
  ActivationLinks links_;
  std::unique_ptr<parallel::TensorGroup> tensor_;  // null where the axis has one rank
  std::vector<std::unique_ptr<nn::Layer>> layers_;
  std::vector<std::unique_ptr<nn::Layer>> evaluation_layers_;  // over the same parameters, without dropout

  std::map<std::pair<program::ActionKind, int>, Units> units_;  // by kind and layer: each found once
  std::map<int, std::vector<optim::AdamWParameter>> updated_;   // by the unit of STEP

  // Of the step that runs.
  const std::vector<nn::Microbatch>* microbatches_ = nullptr;
  int64_t step_ = 0;
  double lr_ = 0;
  bool pends_ = false;  // it will be validated in the next one
  StepResult result_;
  std::map<Flow, at::Tensor> flowing_;  // on this rank
  std::map<Key, std::unique_ptr<nn::Saved>> saved_;
  std::map<Key, at::Tensor> inputs_;   // of layers that full recomputation runs again
  std::vector<at::Tensor> losses_;     // per microbatch, 0-d
  std::unique_ptr<StepRecorder> recorder_;  // null: the step is not timed
  double gradient_scale_ = 1;          // what STEP multiplied the summed gradients with

  // With post-validation.
  struct Pending {
    int64_t step = 0;
    double lr = 0;
    LossSums loss{};
    GradientReducer::Norm norm{};
  };
  std::unique_ptr<StateCopy> before_;  // null without
  LossSums tokens_;
  std::optional<Pending> pending_;
  std::optional<StepResult> validated_;
  bool clipped_ = true;        // so was the last step that is known: the next one will hardly be right
  bool begins_again_ = false;  // the list of actions
  program::MemoryBytes measured_;
};

}  // namespace lockstep::engine
