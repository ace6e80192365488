// The training run around the step program: data in, metrics and checkpoints out.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/checkpoint/async_save.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/world.h"
#include "lockstep/config/load.h"
#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/layout.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/expert_page.h"
#include "lockstep/train/kept_files.h"
#include "lockstep/train/predicted_step.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/run_directory.h"
#include "lockstep/train/run_lock.h"
#include "lockstep/train/saving.h"
#include "lockstep/train/skipped_steps.h"
#include "lockstep/train/stack_dump.h"
#include "lockstep/train/step_log.h"
#include "lockstep/train/step_tracer.h"
#include "lockstep/train/stop_request.h"

namespace lockstep::train {

struct TrainJob {
  const config::LoadedConfig& loaded;
  const program::Layout& layout;
  comm::World& world;
  std::string launcher{};  // who started the ranks, for env.json
  std::string version{};   // of Lockstep
  std::optional<double> stop_after_seconds{};  // from the start of the ranks, by rank 0's clock
  bool second_signal_ends = true;              // see StopSignals
  std::optional<PredictedStep> predicted{};    // of a step on this machine, told beside what steps take
  // Seams for tests, which break a rank there: every action before it runs, every sign of progress of a save beside
  // training.
  engine::ActionObserver before_action{};
  checkpoint::Progress save_progress{};
};

// One rank's part of a run. Rank 0 writes the run directory and the terminal; every rank writes its log.
class Trainer {
 public:
  explicit Trainer(const TrainJob& job);

  // From the newest checkpoint (beginning.h) to the last step, or until the run is asked to stop; then it is saved. Returns
  // kOk, kSaved or kInterrupted, the same on all ranks. Errors as Executor::step, checkpoint::save, checkpoint::resume and
  // RunLock; they are in the log when they leave here.
  ExitCode run();

 private:
  void open_run_directory();
  // trainer_resume.cpp
  void take_lock();
  bool resume();  // false: there is nothing to go on from
  void check_resumed(const checkpoint::Resumed& resumed);
  void leave_branch(int64_t step, bool asked);
  void report_changes(const checkpoint::TrainState& saved);

  Request train();
  bool may_pend(int64_t step) const;
  StepRecord run_step();
  void validated(const std::optional<engine::StepResult>& outcome);
  void known(const StepRecord& record);
  void stop(Request request);
  void finish();
  // What policies ask for.
  Request my_request();
  std::optional<checkpoint::SaveResult> write_checkpoint();
  void write_dump(const std::string& stack);

  bool is_rank0() const { return job_.world.rank() == 0; }
  const config::RunConfig& config() const { return job_.loaded.config; }
  checkpoint::TrainState train_state() const;

  TrainJob job_;
  RunDirectory directory_;
  std::optional<KeptFiles> kept_;  // read by all ranks before anything is written, held until rank 0 has
  RunOutput output_;
  engine::Groups groups_;
  engine::Executor executor_;
  at::Device device_;
  arch::ModelFlops model_flops_;
  data::Sampler sampler_;
  std::optional<data::Sampler> validation_;
  std::shared_ptr<RunLock> lock_;  // taken on rank 0; the thread that saves looks at it too
  checkpoint::Saver saver_;
  double gemm_rate_ = 0;  // FLOP/s of this rank

  RunPosition position_;
  std::optional<int64_t> resumed_at_;
  StepRecord pending_;  // result.pending: there is one

  StepTracer tracer_;
  SkippedSteps skipped_;
  StepLog log_;
  ReplicaPolicy replicas_;
  Evaluation evaluation_;
  ExpertPage expert_page_;
  Saving saving_;
  const std::array<StepPolicy*, 7> policies_ = {&tracer_, &skipped_, &log_, &replicas_, &evaluation_, &expert_page_, &saving_};
  RequestAgreement requests_;
  const Timer stop_after_;

  // Last: what they ask and tell must be there.
  StopSignals signals_;
  StackDump dump_;
};

}  // namespace lockstep::train
