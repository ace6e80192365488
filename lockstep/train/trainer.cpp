#include "lockstep/train/trainer.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/model_json.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/beginning.h"
#include "lockstep/train/changes.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/executor_options.h"
#include "lockstep/train/gemm_rate.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/start.h"
#include "lockstep/train/trainer_console.h"

namespace lockstep::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::optional<data::Sampler> open_validation(const config::RunConfig& config, const program::Layout& layout) {
  if (config.data.validation.empty()) return std::nullopt;
  return open_validation_data(config, layout);
}

// Apart from the groups of training, whose calls go on while a checkpoint is written.
std::unique_ptr<comm::Communicator> checkpoint_group(comm::World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.communicator(ranks, "checkpoint");
}

engine::ExecutorOptions executor_options_of(const TrainJob& job) {
  engine::ExecutorOptions options = executor_options(job.loaded.config, job.layout);
  options.before_action = job.before_action;
  return options;
}

std::chrono::milliseconds milliseconds_of(const config::Duration& duration) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(duration.seconds));
}

// What would stop the run later is told before anything is written.
const TrainJob& checked(const TrainJob& job) {
  device_of(job.loaded.config);
  const config::RunConfig& config = job.loaded.config;
  if (names_a_place(config.checkpoint.resume)) (void)beginning_of(RunDirectory(config.run.dir), config.checkpoint.resume);
  return job;
}

}  // namespace

Trainer::Trainer(const TrainJob& job)
    : job_(checked(job)),
      directory_(job.loaded.config.run.dir),
      kept_(KeptFiles(job.loaded.config)),
      log_({.file = directory_.log(job.world.rank())}),
      groups_(job.world, job.layout),
      executor_(executor_options_of(job), groups_),
      device_(device_of(job.loaded.config)),
      sampler_(open_training_data(job.loaded.config, job.layout)),
      validation_(open_validation(job.loaded.config, job.layout)),
      lock_(std::make_shared<RunLock>(directory_.root())),
      saver_({.world = checkpoint_group(job.world),
              .directory = directory_.checkpoints(),
              .keep = static_cast<int>(job.loaded.config.checkpoint.keep),
              .stall_timeout = milliseconds_of(job.loaded.config.checkpoint.stall_timeout),
              .progress = job.save_progress,
              .guard = [lock = lock_] { lock->look(); }}),
      tracer_(directory_, config::traced_steps(job.loaded.config), job.world, groups_, executor_),
      signals_(job.second_signal_ends),
      dump_([this](const std::string& stack) { write_dump(stack); }) {}

Trainer::~Trainer() = default;

ExitCode Trainer::run() {
  try {
    open_run_directory();
    if (!resume() && load_start_values(config(), executor_)) note(cat("starts from ", config().model.from));
    const Request request = train();
    stops(request) ? stop(request) : finish();
    return exit_code(request);
  } catch (const std::exception& error) {
    log_.error(error.what());
    throw;
  }
}

void Trainer::note(const std::string& text) {
  log_.info(text);
  if (rank0_) rank0_->console.note(text);
}

void Trainer::open_run_directory() {
  log_.info(cat("rank ", job_.world.rank(), " of ", job_.world.size(), " (", job_.layout.mesh.describe(job_.world.rank()),
                "), ", job_.world.backend(), ", started by ", job_.launcher));
  take_lock();
  if (is_rank0()) {
    directory_.open({.config_text = config::resolved_toml(job_.loaded),
                     .model = arch::model_json(job_.layout.model),
                     .environment = describe_environment({{"launcher", job_.launcher},
                                                          {"world_size", job_.world.size()},
                                                          {"backend", job_.world.backend()},
                                                          {"lockstep", job_.version}})});
    kept_.value().write(directory_);
    rank0_ = std::make_unique<Console0>(directory_);
    rank0_->console.header(run_header(job_, executor_));
  }
  kept_.reset();
  groups_.world().barrier({.site = "start"}).wait();
  if (const std::string startup = job_.world.startup(); !startup.empty()) note(startup);
  gemm_rate_ = measure_gemm_rate(executor_.compute_dtype(), device_);
}

Request Trainer::train() {
  last_save_ = Clock::now();
  while (step_ < config().train.steps) {
    const double lr = optim::learning_rate(config().optimizer, step_, config().train.steps);
    const auto begin = Clock::now();
    const engine::StepResult result = train_step(lr);
    const double seconds = seconds_since(begin);
    if (const auto earlier = executor_.take_validated()) count(*earlier, std::exchange(pending_, {}));
    StepTime time{.step = step_, .lr = lr, .seconds = seconds, .data_seconds = data_seconds_, .result = result};
    if (result.pending) {
      pending_ = std::move(time);
    } else if (result.skipped.empty()) {
      count(result, time);
      if (replicas_due(config(), step_)) check_replicas(false);
      evaluate_if_due();
      save_if_due();
    } else {
      report_skipped(result);
    }
    if (step_ == config().train.steps) break;
    const Request request = agree_on_request();
    if (request != Request::kNone) settle();
    if (stops(request)) return request;
    if (request == Request::kSave && saved_at_ != step_) save();
  }
  return Request::kNone;
}

// Whether the step to come, counted from 1, is followed by something that needs its outcome at once.
bool Trainer::must_be_settled(int64_t step) const {
  const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
  return logged(step) || (validation_ && due(config().train.eval_every)) || due(config().checkpoint.every.steps.value_or(0)) ||
         replicas_due(config(), step) || tracer_.traces(step) || tracer_.traces(step + 1);
}

void Trainer::settle() {
  if (const auto result = executor_.settle()) count(*result, std::exchange(pending_, {}));
}

// Once the outcome of a step is known.
void Trainer::count(const engine::StepResult& result, const StepTime& time) {
  consumed_tokens_ += result.tokens;
  last_loss_ = result.loss;
  skipped_in_a_row_ = 0;
  exposed_.add(time.result, time.seconds);
  log_step(result, time);
}

// A signal may have reached one rank alone, and only rank 0 looks at files and the clock: the largest request counts. While a
// step is pending nobody waits here: what was asked after the step before counts.
Request Trainer::agree_on_request() {
  if (!asked_.value.defined()) ask();
  if (!pending_.result.pending || asked_.step < step_) {
    asked_.work.wait();
    const auto request = static_cast<Request>(asked_.value.item<int64_t>());
    asked_ = {};
    if (pending_.result.pending && request == Request::kNone) ask();
    return request;
  }
  return Request::kNone;
}

void Trainer::ask() {
  Request mine = signals_.request();
  if (is_rank0()) {
    lock_->check();
    mine = std::max(mine, take_switch_file(directory_.root()));
    if (job_.stop_after_seconds && seconds_since(began_) >= *job_.stop_after_seconds)
      mine = std::max(mine, Request::kRequeue);
    const std::optional<double>& every = config().checkpoint.every.seconds;
    if (every && seconds_since(last_save_) >= *every) mine = std::max(mine, Request::kSave);  // clocks differ
  }
  asked_ = {.step = step_, .value = at::tensor({static_cast<int64_t>(mine)}, at::kLong)};
  asked_.work = groups_.world().all_reduce(
      asked_.value, {.site = "stop", .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax});
}

void Trainer::stop(Request request) {
  if (saved_at_ != step_) save();
  report_saved(saver_.wait());
  note(cat("stopped by ", describe(request), " at step ", step_, "; the same command goes on from there"));
  if (rank0_) rank0_->metrics.event("stop", step_, {{"code", static_cast<int>(exit_code(request))}});
}

// On the thread of the dump, while the rank goes on.
void Trainer::write_dump(const std::string& stack) {
  std::vector<std::pair<std::string, std::string>> last_calls;
  for (const auto& [name, group] : groups_.all()) last_calls.emplace_back(name, group->last_calls());
  last_calls.emplace_back("checkpoint", saver_.last_calls());
  const auto report = [&](int calls) {
    return activity_report({.rank = groups_.rank(),
                            .calls = last_calls,
                            .save = saver_.activity(),
                            .stack = stack},
                           calls);
  };
  log_.info(report(64));
  log_.flush();
  std::fputs(report(8).c_str(), stderr);
}

engine::StepResult Trainer::train_step(double lr) {
  const auto begin = Clock::now();
  const std::vector<nn::Microbatch> microbatches =
      executor_.load([&] {
        return load_step(sampler_, job_.layout, job_.world.rank(), {.step = step_, .first_sample = consumed_samples_}, device_);
      });
  data_seconds_ = seconds_since(begin);
  tracer_.before(step_ + 1);
  const engine::StepResult result = executor_.step(microbatches, step_ + 1, lr, !must_be_settled(step_ + 1));
  if (const auto traced = tracer_.after(step_ + 1)) note(*traced);
  consumed_samples_ += job_.layout.global_batch;
  if (result.skipped.empty()) ++step_;
  return result;
}

void Trainer::evaluate_if_due() {
  const int64_t every = config().train.eval_every;
  if (!validation_ || every == 0 || (step_ % every != 0 && step_ != config().train.steps)) return;
  const auto begin = Clock::now();
  const double loss = evaluate(executor_, groups_, *validation_, config().train.eval_samples, device_);
  note(cat("validation loss ", number_text(static_cast<float>(loss)), " at step ", step_));
  if (rank0_)
    rank0_->metrics.event("eval", step_, {{"validation/loss", loss}, {"seconds", seconds_since(begin)}});
}

void Trainer::save_if_due() {
  report_saved(saver_.poll(groups_.world()));
  const config::Interval& every = config().checkpoint.every;
  if (step_ == config().train.steps) return;  // finish() saves the last one
  if (every.steps.value_or(0) > 0 && step_ % *every.steps == 0) save();  // agree_on_request() looks at clocks
}

checkpoint::TrainState Trainer::train_state() const {
  return {.step = step_,
          .consumed_samples = consumed_samples_,
          .consumed_tokens = consumed_tokens_,
          .seed = static_cast<uint64_t>(config().train.seed),
          .data = data_identity(config(), job_.layout, sampler_),
          .model = arch::model_json(job_.layout.model),
          .version = job_.version,
          .settings = settings_of(config()),
          .world_size = job_.world.size(),
          .layout = program::describe(job_.layout)};
}

// What lies on a disk is read for it only where it is written anyway.
void Trainer::check_replicas(bool saves) {
  engine::HostStates* host = executor_.store().host();
  if (compared_at_ == step_ && !(saves && host && host->disk())) return;
  train::check_replicas(executor_, groups_,
                        {.step = step_,
                         .counters = {{"steps", step_}, {"samples consumed", consumed_samples_}, {"tokens consumed", consumed_tokens_}},
                         .with_disk = saves});
  compared_at_ = step_;
}

void Trainer::save() {
  check_replicas(true);
  const std::vector<engine::StateTensor> state = executor_.store().state();
  if (config().checkpoint.asynchronous) {
    report_saved(saver_.start(state, train_state()));
  } else {
    report_saved(checkpoint::save({.directory = directory_.checkpoints(),
                                   .state = state,
                                   .train_state = train_state(),
                                   .world = groups_.world(),
                                   .keep = static_cast<int>(config().checkpoint.keep),
                                   .guard = [this] { lock_->look(); }}));
  }
  last_save_ = Clock::now();
  saved_at_ = step_;
}

void Trainer::finish() {
  if (saved_at_ == config().train.steps && resumed_at_ == step_) {
    note(cat("nothing to do: the run has its ", step_, " steps; raise train.steps to go on"));
  } else if (step_ > config().train.steps) {
    note(cat("nothing to do: the run has done ", step_, " steps, more than train.steps = ", config().train.steps,
             "; raise it above ", step_, " to go on, or go back with --checkpoint.resume=",
             (directory_.checkpoints() / "step-NNNNNNNN").string()));
  } else if (saved_at_ != step_) {
    save();
  }
  report_saved(saver_.wait());
  if (const std::string waited = exposed_.text(); !waited.empty()) note(waited);
  if (const std::string copied = exposed_.copies_text(); !copied.empty()) note(copied);
  if (!rank0_) return;
  rank0_->metrics.event("stop", step_, {{"code", 0}});
  directory_.finish(step_, last_loss_);
}

}  // namespace lockstep::train
