#include "lockstep/engine/copy_queue.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/units.h"

namespace lockstep::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// A copy of one thread: at::Tensor::copy_ would take the compute threads' cores for a moment.
void copy_on_host(const at::Tensor& from, const at::Tensor& to) {
  if (from.scalar_type() == to.scalar_type()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
    return;
  }
  LOCKSTEP_CHECK(from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16, from.dtype(), " to ", to.dtype());
  const float* source = from.const_data_ptr<float>();
  c10::BFloat16* target = to.mutable_data_ptr<c10::BFloat16>();
  for (int64_t i = 0; i < to.numel(); ++i) target[i] = source[i];
}

// On a stream of its own, behind what the caller's stream had to do when the copy was asked for.
class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device)
      : guard_(device.type()), stream_(guard_.getStreamFromGlobalPool(device, false)), asked_(device.type()) {
    asked_.record(guard_.getStream(device));
  }
  void run(const at::Tensor& from, const at::Tensor& to) {
    const c10::StreamGuard on(stream_);
    asked_.block(stream_);
    to.copy_(from, /*non_blocking=*/true);
    c10::Event done(stream_.device_type());
    done.record(stream_);
    done.synchronize();
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  c10::Event asked_;
};

}  // namespace

struct CopyState {
  std::string what;
  int64_t bytes = 0;
  std::function<void()> body;
  std::shared_ptr<CopyThread> queue;
  bool done = false;  // with the queue's mutex held
};

// Outlives the queue where its thread hangs.
struct CopyThread {
  explicit CopyThread(const CopyQueueOptions& given) : options(given) {}

  void work_off();
  // Until `holds`; counted as exposed.
  template <typename Holds>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& what, Holds holds);

  const CopyQueueOptions options;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::shared_ptr<CopyState>> waiting;
  int64_t bytes = 0;    // of copies that are not done
  bool running = false;
  bool closing = false;
  bool ended = false;
  std::exception_ptr failure;  // of the first that failed
  CopyTotals totals;
  std::thread thread;
};

template <typename Holds>
void CopyThread::wait(std::unique_lock<std::mutex>& lock, const std::string& what, Holds holds) {
  if (!holds()) {
    const auto began = Clock::now();
    const bool in_time = changed.wait_for(lock, options.deadline, holds);
    totals.exposed_seconds += seconds_since(began);
    if (!in_time)
      throw EnvironmentError({.code = "LS4014",
                              .what = cat("offload: ", what, " has not ended after ", format_duration(seconds_since(began))),
                              .way_out = "look at the disk of memory.disk_path; the last checkpoint is good: start again to resume"});
  }
}

void CopyThread::work_off() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return closing || !waiting.empty(); });
    if (closing) break;
    const std::shared_ptr<CopyState> copy = std::move(waiting.front());
    waiting.pop_front();
    if (!failure) {
      running = true;
      lock.unlock();
      const auto began = Clock::now();
      std::exception_ptr problem;
      try {
        copy->body();
      } catch (...) {
        problem = std::current_exception();
      }
      copy->body = nullptr;  // lets go of its tensors
      lock.lock();
      running = false;
      totals.seconds += seconds_since(began);
      if (problem) failure = problem;
    }
    bytes -= copy->bytes;
    copy->done = true;
    changed.notify_all();
  }
  ended = true;
  changed.notify_all();
}

CopyTotals& CopyTotals::operator+=(const CopyTotals& other) {
  copies += other.copies;
  bytes += other.bytes;
  seconds += other.seconds;
  exposed_seconds += other.exposed_seconds;
  return *this;
}

double CopyTotals::hidden() const {
  return seconds > 0 ? std::clamp(1 - exposed_seconds / seconds, 0.0, 1.0) : 1.0;
}

void Copy::wait() {
  if (!state_) return;
  const std::shared_ptr<CopyState> state = state_;
  CopyThread& queue = *state->queue;
  std::unique_lock lock(queue.mutex);
  queue.wait(lock, state->what, [&] { return state->done || queue.closing; });
  LOCKSTEP_CHECK(state->done, "waited for ", state->what, " after its queue was closed");
  if (queue.failure) std::rethrow_exception(queue.failure);
  lock.unlock();
  state_.reset();
}

CopyQueue::CopyQueue(CopyQueueOptions options) : shared_(std::make_shared<CopyThread>(options)) {
  shared_->thread = std::thread([shared = shared_] { shared->work_off(); });
}

CopyQueue::~CopyQueue() {
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  std::deque<std::shared_ptr<CopyState>> left = std::move(shared_->waiting);
  shared_->waiting.clear();
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, shared_->options.deadline, [this] { return shared_->ended; });
  lock.unlock();
  if (ended)
    shared_->thread.join();
  else
    shared_->thread.detach();  // a disk that never answers: the thread keeps what it uses alive
}

Copy CopyQueue::copy(at::Tensor from, at::Tensor to, std::string what) {
  LOCKSTEP_CHECK_EQ(from.numel(), to.numel(), "copy of ", what);
  LOCKSTEP_CHECK(from.is_contiguous() && to.is_contiguous(), "copy of ", what);
  const auto bytes = static_cast<int64_t>(to.nbytes());
  if (from.is_cpu() && to.is_cpu())
    return start(std::move(what), bytes, [from = std::move(from), to = std::move(to)] { copy_on_host(from, to); });
  const auto copy = std::make_shared<DeviceCopy>(from.is_cpu() ? to.device() : from.device());
  return start(std::move(what), bytes, [copy, from = std::move(from), to = std::move(to)] { copy->run(from, to); });
}

Copy CopyQueue::start(std::string what, int64_t bytes, std::function<void()> body) {
  Copy copy;
  copy.state_ = std::make_shared<CopyState>();
  copy.state_->what = std::move(what);
  copy.state_->bytes = bytes;
  copy.state_->body = std::move(body);
  copy.state_->queue = shared_;
  std::unique_lock lock(shared_->mutex);
  const int64_t most = shared_->options.max_bytes;
  shared_->wait(lock, "an earlier copy", [&] { return most == 0 || shared_->bytes == 0 || shared_->bytes + bytes <= most; });
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  shared_->bytes += bytes;
  shared_->totals.copies += 1;
  shared_->totals.bytes += bytes;
  shared_->waiting.push_back(copy.state_);
  shared_->changed.notify_all();
  return copy;
}

void CopyQueue::wait() {
  std::unique_lock lock(shared_->mutex);
  shared_->wait(lock, "an earlier copy", [this] { return shared_->waiting.empty() && !shared_->running; });
  if (shared_->failure) std::rethrow_exception(shared_->failure);
}

CopyTotals CopyQueue::take_totals() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->totals, {});
}

}  // namespace lockstep::engine
