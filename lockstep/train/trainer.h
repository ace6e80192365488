// The training run around the step program: data in, metrics and checkpoints out.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/async_save.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/world.h"
#include "lockstep/config/load.h"
#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/layout.h"
#include "lockstep/train/console.h"
#include "lockstep/train/exposed.h"
#include "lockstep/train/kept_files.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_directory.h"
#include "lockstep/train/run_lock.h"
#include "lockstep/train/stack_dump.h"
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
  // Seams for tests, which break a rank there: every action before it runs, every sign of progress of a save beside
  // training.
  engine::ActionObserver before_action{};
  checkpoint::Progress save_progress{};
};

// One rank's part of a run. Rank 0 writes the run directory and the terminal; every rank writes its log.
class Trainer {
 public:
  explicit Trainer(const TrainJob& job);
  ~Trainer();

  // From the newest checkpoint (beginning.h) to the last step, or until the run is asked to stop; then it is saved. Returns
  // kOk, kSaved or kInterrupted, the same on all ranks. Errors as Executor::step, checkpoint::save, checkpoint::resume and
  // RunLock; they are in the log when they leave here.
  ExitCode run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Console0;  // what only rank 0 has

  void open_run_directory();
  void take_lock();
  bool resume();  // false: there is nothing to go on from
  void check_resumed(const checkpoint::Resumed& resumed);
  void leave_branch(int64_t step, bool asked);
  void report_changes(const checkpoint::TrainState& saved);
  Request train();
  bool must_be_settled(int64_t step) const;
  void settle();
  Request agree_on_request();
  void ask();
  void stop(Request request);
  void write_dump(const std::string& stack);
  engine::StepResult train_step(double lr);
  void report_skipped(const engine::StepResult& result);
  // What is known of a step when it has been begun; the rest may follow in the next one (Executor::step).
  struct StepTime {
    int64_t step = 0;
    double lr = 0;
    double seconds = 0;
    double data_seconds = 0;  // of them, for the batch
    engine::StepResult result{};
  };
  void count(const engine::StepResult& result, const StepTime& time);
  bool logged(int64_t step) const;
  void log_step(const engine::StepResult& result, const StepTime& time);
  void compare_memory();
  void check_replicas(bool saves);
  void evaluate_if_due();
  void save_if_due();
  void save();
  void report_saved(const std::optional<checkpoint::SaveResult>& saved);
  void finish();
  void note(const std::string& text);

  bool is_rank0() const { return job_.world.rank() == 0; }
  const config::RunConfig& config() const { return job_.loaded.config; }
  checkpoint::TrainState train_state() const;
  double worst_memory_gib();

  TrainJob job_;
  RunDirectory directory_;
  std::optional<KeptFiles> kept_;  // read by all ranks before anything is written, held until rank 0 has
  Log log_;
  engine::Groups groups_;
  engine::Executor executor_;
  at::Device device_;
  data::Sampler sampler_;
  std::optional<data::Sampler> validation_;
  std::shared_ptr<RunLock> lock_;  // taken on rank 0; the thread that saves looks at it too
  bool warned_of_latest_ = false;
  checkpoint::Saver saver_;
  StepTracer tracer_;
  std::unique_ptr<Console0> rank0_;

  // The position of the run: everything a checkpoint must remember.
  int64_t step_ = 0;  // optimizer steps done
  int64_t consumed_samples_ = 0;
  int64_t consumed_tokens_ = 0;

  int64_t skipped_in_a_row_ = 0;

  StepTime pending_;  // result.pending: there is one
  struct Asked {
    int64_t step = 0;
    at::Tensor value{};  // a Request
    comm::Work work{};
  };
  Asked asked_;
  struct SinceLine {
    int64_t steps = 0, tokens = 0;
    double seconds = 0, data_seconds = 0;
  };
  SinceLine since_line_;

  int64_t resumed_at_ = 0;
  int64_t saved_at_ = -1;
  int64_t compared_at_ = -1;  // replicas
  double last_loss_ = 0;
  ExposedTotals exposed_;  // since the start
  double data_seconds_ = 0;
  double gemm_rate_ = 0;  // FLOP/s of this rank
  const Clock::time_point began_ = Clock::now();
  Clock::time_point last_save_;

  // Last: what they ask and tell must be there.
  StopSignals signals_;
  StackDump dump_;
};

}  // namespace lockstep::train
