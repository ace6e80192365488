#include "lockstep/train/trainer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/expert_loads.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/beginning.h"
#include "lockstep/train/changes.h"
#include "lockstep/train/executor_options.h"
#include "lockstep/train/gemm_rate.h"
#include "lockstep/train/start.h"

namespace lockstep::train {
namespace {

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
      directory_(config().run.dir),
      kept_(KeptFiles(config())),
      output_(directory_.log(job.world.rank())),
      groups_(job.world, job.layout),
      executor_(executor_options_of(job), groups_),
      device_(device_of(config())),
      model_flops_(job.layout.model),
      sampler_(open_training_data(config(), job.layout)),
      validation_(config().data.validation.empty() ? std::nullopt : std::optional(open_validation_data(config(), job.layout))),
      lock_(std::make_shared<RunLock>(directory_.root())),
      saver_({.world = job.world.all_ranks("checkpoint"),
              .directory = directory_.checkpoints(),
              .keep = static_cast<int>(config().checkpoint.keep),
              .stall_timeout = milliseconds_of(config().checkpoint.stall_timeout),
              .progress = job.save_progress,
              .guard = [lock = lock_] { lock->look(); }}),
      tracer_(directory_, config::traced_steps(config()), job.world, groups_, executor_),
      skipped_(output_),
      log_({.every = config().train.log_every,
            .total = config().train.steps,
            .expert_loads = [&layout = job.layout](const engine::StepResult& result) { return engine::expert_loads(layout, result.loads); },
            .worst_memory_gib = [this] { return worst_memory_gib(executor_, groups_); },
            .behind_first = [this](int64_t step) { report_memory(executor_, step, output_); },
            .predicted = job.predicted},
           output_),
      replicas_(config().train.check_replicas_every, executor_.store().host() && executor_.store().host()->disk(),
                [this](const RunPosition& at, bool with_disk) { check_replicas(executor_, groups_, at, with_disk); }),
      evaluation_(validation_ ? config().train.eval_every : 0, config().train.steps,
                  [this] { return evaluate(executor_, groups_, *validation_, config().train.eval_samples, device_); }, output_),
      expert_page_(directory_, job.layout, output_, job.world.rank() == 0),
      saving_({.every = config().checkpoint.every,
               .total = config().train.steps,
               .write = [this] { return write_checkpoint(); },
               .poll = [this] { return saver_.poll(groups_.world()); },
               .wait = [this] { return saver_.wait(); }},
              output_),
      requests_(groups_.world(), [this] { return my_request(); }),
      stop_after_{.seconds = job.stop_after_seconds, .start = std::chrono::steady_clock::now()},
      signals_(job.second_signal_ends),
      dump_([this](const std::string& stack) { write_dump(stack); }) {}

ExitCode Trainer::run() {
  try {
    open_run_directory();
    if (!resume() && load_start_values(config(), executor_)) output_.note(cat("starts from ", config().model.from));
    const Request request = train();
    stops(request) ? stop(request) : finish();
    return exit_code(request);
  } catch (const std::exception& error) {
    output_.log().error(error.what());
    throw;
  }
}

void Trainer::open_run_directory() {
  output_.log().info(cat("rank ", job_.world.rank(), " of ", job_.world.size(), " (", job_.layout.mesh.describe(job_.world.rank()),
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
    output_.open(directory_.root());
    output_.console()->header(run_header(job_, executor_));
  }
  kept_.reset();
  groups_.world().barrier({.id = program::call_id(program::Purpose::kStart)}).wait();
  if (const std::string startup = job_.world.startup(); !startup.empty()) output_.note(startup);
  if (const data::Packing* packing = sampler_.packing()) output_.note(cat("training data: ", data::packing_text(packing->figures())));
  gemm_rate_ = measure_gemm_rate(executor_.compute_dtype(), device_);
}

Request Trainer::train() {
  log_.begin(position_.step, gemm_rate_ * job_.world.size());
  saving_.begin(resumed_at_);
  while (position_.step < config().train.steps) {
    StepRecord record = run_step();
    validated(executor_.take_validated());
    if (record.result.pending) {
      pending_ = std::move(record);
    } else if (record.result.skipped.empty()) {
      known(record);
      for (StepPolicy* policy : policies_) policy->settled(position_);
    } else {
      skipped_.skipped(record);
    }
    if (position_.step == config().train.steps) break;
    const Request request = requests_.agreed(position_.step, pending_.result.pending);
    if (request != Request::kNone) validated(executor_.settle());
    if (stops(request)) return request;
    if (request == Request::kSave) saving_.save(position_);
  }
  return Request::kNone;
}

StepRecord Trainer::run_step() {
  const int64_t step = position_.step + 1;
  StepRecord record{.step = step, .lr = optim::learning_rate(config().optimizer, position_.step, config().train.steps)};
  const Time begin = std::chrono::steady_clock::now();
  const std::vector<nn::Microbatch> microbatches = executor_.load([&] {
    return load_step(sampler_, job_.layout, job_.world.rank(),
                     {.step = position_.step, .first_sample = position_.consumed_samples}, device_);
  });
  record.data_seconds = seconds_since(begin);
  if (is_rank0()) record.model_flops = step_flops(model_flops_, sampler_, {.first = position_.consumed_samples, .count = job_.layout.global_batch});
  tracer_.before(step);
  record.result = executor_.step(microbatches, step, record.lr, may_pend(step));
  if (const auto traced = tracer_.after(step)) output_.note(*traced);
  position_.consumed_samples += job_.layout.global_batch;
  if (record.result.skipped.empty()) position_.step = step;
  record.seconds = seconds_since(begin);
  return record;
}

// Unless something behind it needs its outcome at once.
bool Trainer::may_pend(int64_t step) const {
  return std::ranges::none_of(policies_, [step](const StepPolicy* policy) { return policy->due(step); });
}

// The pending step is: its outcome is known.
void Trainer::validated(const std::optional<engine::StepResult>& outcome) {
  if (!outcome) return;
  StepRecord record = std::exchange(pending_, {});
  record.result.pending = false;
  record.result.loss = outcome->loss;
  record.result.tokens = outcome->tokens;
  record.result.grad_norm = outcome->grad_norm;
  record.result.clip_factor = outcome->clip_factor;
  record.result.loads = outcome->loads;
  record.result.aux_loss = outcome->aux_loss;
  record.result.z_loss = outcome->z_loss;
  known(record);
}

void Trainer::known(const StepRecord& record) {
  position_.consumed_tokens += record.result.tokens;
  for (StepPolicy* policy : policies_) policy->known(record, position_);
}

void Trainer::stop(Request request) {
  saving_.save(position_);
  saving_.wait();
  output_.note(cat("stopped by ", describe(request), " at step ", position_.step, "; the same command goes on from there"));
  output_.event("stop", position_.step, {{"code", static_cast<int>(exit_code(request))}});
}

void Trainer::finish() {
  const int64_t step = position_.step, total = config().train.steps;
  if (step > total) {
    output_.note(cat("nothing to do: the run has done ", step, " steps, more than train.steps = ", total, "; raise it above ", step,
                     " to go on, or go back with --checkpoint.resume=", (directory_.checkpoints() / "step-NNNNNNNN").string()));
  } else if (resumed_at_ == step) {
    output_.note(cat("nothing to do: the run has its ", step, " steps; raise train.steps to go on"));
  } else {
    saving_.save(position_);
  }
  saving_.wait();
  log_.sum_up();
  output_.event("stop", step, {{"code", 0}});
  if (is_rank0()) directory_.finish(step, log_.last_loss());
}

Request Trainer::my_request() {
  Request mine = signals_.request();
  if (!is_rank0()) return mine;
  lock_->check();
  mine = std::max(mine, take_switch_file(directory_.root()));
  if (stop_after_.rings(std::chrono::steady_clock::now())) mine = std::max(mine, Request::kRequeue);
  if (saving_.overdue()) mine = std::max(mine, Request::kSave);
  return mine;
}

std::optional<checkpoint::SaveResult> Trainer::write_checkpoint() {
  replicas_.before_save(position_);
  expert_page_.write();
  const std::vector<engine::StateTensor> state = executor_.store().state();
  if (config().checkpoint.asynchronous) return saver_.start(state, train_state());
  return checkpoint::save({.directory = directory_.checkpoints(),
                           .state = state,
                           .train_state = train_state(),
                           .world = groups_.world(),
                           .keep = static_cast<int>(config().checkpoint.keep),
                           .guard = [this] { lock_->look(); }});
}

checkpoint::TrainState Trainer::train_state() const {
  return {.step = position_.step,
          .consumed_samples = position_.consumed_samples,
          .consumed_tokens = position_.consumed_tokens,
          .seed = static_cast<uint64_t>(config().train.seed),
          .data = data_identity(config(), job_.layout, sampler_),
          .model = arch::model_json(job_.layout.model),
          .version = job_.version,
          .settings = settings_of(config()),
          .last_loads = engine::routed_json(job_.layout, executor_.last_loads()),
          .world_size = job_.world.size(),
          .layout = program::describe(job_.layout)};
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
  output_.log().info(report(64));
  output_.log().flush();
  std::fputs(report(8).c_str(), stderr);
}

}  // namespace lockstep::train
