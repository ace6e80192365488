#include "lockstep/engine/copy_queue.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

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

// LibTorch would round into pageable memory and hold the host for the copy. The cores are idle beside a GPU: all may round.
void round_and_start(const at::Tensor& from, const at::Tensor& to, DeviceCopy& across) {
  const at::Tensor rounded = at::empty(to.sizes(), to.options().device(at::kCPU).pinned_memory(true));
  rounded.copy_(from);
  across.start(rounded, to);
}

}  // namespace

struct CopyState {
  std::string what;
  int64_t bytes = 0;
  std::function<void()> body;
  std::shared_ptr<CopyThread> queue;
  bool done = false;                   // the thread's part; with the queue's mutex held
  std::shared_ptr<DeviceCopy> across;  // null: no side is a device. The thread's until its part is done, then the caller's
};

// Outlives the queue where its thread hangs.
struct CopyThread {
  explicit CopyThread(const CopyQueueOptions& given) : options(given) {}

  void work_off();
  // Until `holds`; counted as exposed.
  template <typename Holds>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& what, Holds holds);
  // Until the thread's part of a copy is done.
  void wait_for_thread(const CopyState& copy);
  void wait_for_device(CopyState& copy);
  // With the mutex held: counts a copy that begins, and throws where it may not; lets go of what has ended on a device.
  void note(const std::shared_ptr<CopyState>& copy);
  void forget_done();

  const CopyQueueOptions options;
  std::vector<std::shared_ptr<CopyState>> across;  // the caller's: not seen to have ended
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

void CopyThread::wait_for_thread(const CopyState& copy) {
  std::unique_lock lock(mutex);
  wait(lock, copy.what, [&] { return copy.done || closing; });
  LOCKSTEP_CHECK(copy.done, "waited for ", copy.what, " after its queue was closed");
  if (failure) std::rethrow_exception(failure);
}

void CopyThread::wait_for_device(CopyState& copy) {
  if (copy.across->done()) return;
  const auto began = Clock::now();
  copy.across->wait(options.deadline, copy.what);
  const std::lock_guard lock(mutex);
  totals.exposed_seconds += seconds_since(began);
}

void CopyThread::note(const std::shared_ptr<CopyState>& copy) {
  if (failure) std::rethrow_exception(failure);
  forget_done();
  totals.copies += 1;
  totals.bytes += copy->bytes;
  if (copy->across) across.push_back(copy);
}

void CopyThread::forget_done() {
  std::erase_if(across, [&](const std::shared_ptr<CopyState>& copy) {
    if (!copy->done || !copy->across->done()) return false;
    totals.seconds += copy->across->seconds();
    return true;
  });
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
  state->queue->wait_for_thread(*state);
  if (state->across) state->queue->wait_for_device(*state);
  state_.reset();
}

void Copy::order_after() {
  if (!state_) return;
  const std::shared_ptr<CopyState> state = state_;
  state->queue->wait_for_thread(*state);
  if (state->across) state->across->order_after();
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
  shared_->across.clear();
}

Copy CopyQueue::copy(at::Tensor from, at::Tensor to, std::string what) {
  LOCKSTEP_CHECK_EQ(from.numel(), to.numel(), "copy of ", what);
  LOCKSTEP_CHECK(from.is_contiguous() && to.is_contiguous(), "copy of ", what);
  const auto bytes = static_cast<int64_t>(to.nbytes());
  if (from.is_cpu() && to.is_cpu())
    return start(std::move(what), bytes, [from = std::move(from), to = std::move(to)] { copy_on_host(from, to); });
  const bool back = to.is_cpu();
  const std::shared_ptr<DeviceCopy> across =
      ask(back ? from.device() : to.device(), back ? Direction::kToHost : Direction::kToDevice);
  if (from.scalar_type() != to.scalar_type())
    return start(std::move(what), bytes, [across, from, to] { round_and_start(from, to, *across); }, across);
  Copy copy = made(std::move(what), bytes, across);
  copy.state_->done = true;  // the thread has no part in it
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->note(copy.state_);
  }
  across->start(std::move(from), std::move(to));
  return copy;
}

Copy CopyQueue::start(std::string what, int64_t bytes, std::function<void()> body, std::shared_ptr<DeviceCopy> across) {
  Copy copy = made(std::move(what), bytes, std::move(across));
  copy.state_->body = std::move(body);
  std::unique_lock lock(shared_->mutex);
  const int64_t most = shared_->options.max_bytes;
  shared_->wait(lock, "an earlier copy", [&] { return most == 0 || shared_->bytes == 0 || shared_->bytes + bytes <= most; });
  shared_->note(copy.state_);
  shared_->bytes += bytes;
  shared_->waiting.push_back(copy.state_);
  shared_->changed.notify_all();
  return copy;
}

Copy CopyQueue::made(std::string what, int64_t bytes, std::shared_ptr<DeviceCopy> across) const {
  Copy copy;
  copy.state_ = std::make_shared<CopyState>();
  copy.state_->what = std::move(what);
  copy.state_->bytes = bytes;
  copy.state_->across = std::move(across);
  copy.state_->queue = shared_;
  return copy;
}

void CopyQueue::wait() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->wait(lock, "an earlier copy", [this] { return shared_->waiting.empty() && !shared_->running; });
    if (shared_->failure) std::rethrow_exception(shared_->failure);
  }
  for (const std::shared_ptr<CopyState>& copy : shared_->across) shared_->wait_for_device(*copy);
}

const CopyQueueOptions& CopyQueue::options() const { return shared_->options; }

CopyTotals CopyQueue::take_totals() {
  const std::lock_guard lock(shared_->mutex);
  shared_->forget_done();
  return std::exchange(shared_->totals, {});
}

}  // namespace lockstep::engine
