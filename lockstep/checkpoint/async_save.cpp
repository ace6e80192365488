#include "lockstep/checkpoint/async_save.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/agree.h"
#include "lockstep/checkpoint/shard_writer.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

// Of a tensor's place in the buffer: each begins on a cache line of its own.
size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

struct Saver::Job {
  explicit Job(SaverOptions given) : options(std::move(given)) {}

  void run();
  void note(const std::string& what);
  std::string what_and_for_how_long() const;  // with the mutex held
  bool stalled() const { return !ended && !doing.empty() && Clock::now() - since > options.stall_timeout; }

  const SaverOptions options;
  // Of the save in flight: written before its thread starts.
  std::unique_ptr<std::byte[]> buffer;  // what `staged` lies in
  size_t capacity = 0;                  // bytes of it
  std::vector<engine::StateTensor> staged;
  TrainState train_state;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::string doing;  // empty: waits for the other ranks, which its communicator bounds
  Clock::time_point since{};
  bool ended = true;
  bool lost_peers = false;  // this rank's part ended because another did not come
  std::exception_ptr error;
  SaveResult result;
};

void Saver::Job::note(const std::string& what) {
  {
    const std::lock_guard lock(mutex);
    doing = what;
    since = Clock::now();
  }
  if (options.progress) options.progress(what);
}

std::string Saver::Job::what_and_for_how_long() const {
  return cat(doing.empty() ? "waiting for the other ranks" : doing, " for ",
             format_duration(std::chrono::duration<double>(Clock::now() - since).count()));
}

void Saver::Job::run() {
  SaveResult saved;
  std::exception_ptr failure;
  bool lost = false;
  try {
    saved = save({.directory = options.directory,
                  .state = staged,
                  .copied = true,
                  .train_state = train_state,
                  .world = *options.world,
                  .keep = options.keep,
                  .progress = [this](const std::string& what) { note(what); },
                  .guard = options.guard});
  } catch (const PeerLostError&) {
    failure = std::current_exception();
    lost = true;
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  result = std::move(saved);
  error = failure;
  lost_peers = lost;
  ended = true;
  changed.notify_all();
}

Saver::Saver(SaverOptions options) : job_(std::make_shared<Job>(std::move(options))) {}

Saver::~Saver() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(job_->mutex);
  while (!job_->ended && !given_up_ && !job_->stalled()) job_->changed.wait_for(lock, std::chrono::milliseconds(50));
  const bool ended = job_->ended;
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

std::optional<SaveResult> Saver::start(std::span<const engine::StateTensor> state, const TrainState& train_state) {
  std::optional<SaveResult> before = wait();
  stage(state);
  job_->options.world->confirm();
  job_->train_state = train_state;
  {
    const std::lock_guard lock(job_->mutex);
    job_->ended = job_->lost_peers = false;
    job_->doing = "starting";
    job_->since = Clock::now();
  }
  thread_ = std::thread([job = job_] { job->run(); });
  return before;
}

// Not in LibTorch's memory: it would count as memory of the step, and be taken anew for each save.
void Saver::stage(std::span<const engine::StateTensor> state) {
  job_->staged = own_share(state);
  size_t bytes = 0;
  for (const engine::StateTensor& part : job_->staged) bytes += aligned(part.local.nbytes());
  if (bytes > job_->capacity) {
    job_->buffer.reset();
    job_->buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
    job_->capacity = bytes;
  }
  std::byte* next = job_->buffer.get();
  for (engine::StateTensor& part : job_->staged) {
    const at::Tensor copy =
        at::from_blob(next, part.local.sizes(), at::TensorOptions().dtype(part.local.scalar_type()));
    copy.copy_(part.local);
    next += aligned(part.local.nbytes());
    part.local = copy;
  }
}

// Why this rank's part will not come to an end on all ranks; "" where nothing speaks against it.
std::string Saver::problem() const {
  const std::lock_guard lock(job_->mutex);
  if (job_->stalled()) return job_->what_and_for_how_long();
  if (!job_->ended || !job_->lost_peers) return "";
  try {
    std::rethrow_exception(job_->error);
  } catch (const Error& error) {
    return error.message().what;
  }
}

void Saver::give_up(const std::string& problem) {
  given_up_ = true;
  throw CheckpointError({.code = "LS1314",
                         .what = cat("the checkpoint of step ", job_->train_state.step, " hangs: ", problem),
                         .way_out = cat("see whether the file system of ", job_->options.directory.string(),
                                        " answers; earlier checkpoints are untouched. checkpoint.stall_timeout is ",
                                        format_duration(std::chrono::duration<double>(job_->options.stall_timeout).count()))});
}

std::optional<SaveResult> Saver::poll(comm::Communicator& training) {
  if (!thread_.joinable()) return std::nullopt;
  const std::string mine = problem();
  bool running;
  {
    const std::lock_guard lock(job_->mutex);
    running = !job_->ended;
  }
  // The lowest rank with a problem has the largest number.
  const int64_t trouble = mine.empty() ? 0 : training.size() - training.rank();
  const at::Tensor worst = at::tensor({running ? int64_t{1} : int64_t{0}, trouble}, at::kLong);
  training
      .all_reduce(worst, {.id = program::call_id(program::Purpose::kCheckpointInFlight),
                          .algorithm = program::Algorithm::kDirect,
                          .op = comm::ReduceOp::kMax})
      .wait();
  const int64_t* values = worst.const_data_ptr<int64_t>();
  if (values[0] == 0) return wait();
  if (values[1] == 0) return std::nullopt;
  const int root = training.size() - static_cast<int>(values[1]);
  give_up(cat("rank ", root, ": ", broadcast_text(training, program::call_id(program::Purpose::kCheckpointHangs), root, mine)));
}

std::optional<SaveResult> Saver::wait() {
  if (!thread_.joinable()) return std::nullopt;
  {
    std::unique_lock lock(job_->mutex);
    while (!job_->ended && !job_->stalled()) job_->changed.wait_for(lock, std::chrono::milliseconds(50));
    if (!job_->ended) give_up(cat("rank ", job_->options.world->rank(), ": ", job_->what_and_for_how_long()));
  }
  thread_.join();
  if (job_->error) std::rethrow_exception(std::exchange(job_->error, nullptr));
  return std::move(job_->result);
}

std::string Saver::last_calls() const { return job_->options.world->last_calls(); }

std::string Saver::activity() const {
  const std::lock_guard lock(job_->mutex);
  return job_->ended ? "" : job_->what_and_for_how_long();
}

}  // namespace lockstep::checkpoint
