#include "lockstep/engine/copy_queue.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

namespace lockstep::engine {

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

struct CopyState {
  std::string what{};
  int64_t bytes = 0;
  std::function<void()> body{};          // of the thread; none: it has no part in the copy
  std::shared_ptr<DeviceCopy> across{};  // null: no side is a device. The thread's until its part is done, then the caller's
  std::shared_ptr<CopyThread> queue{};
  bool done = false;                     // the thread's part; with the queue's mutex held
};

// Outlives the queue where its thread hangs.
struct CopyThread {
  void work_off();  // until `closing`
  // Until `holds`; counted as exposed.
  template <typename Holds>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& what, Holds holds) {
    if (holds()) return;
    const auto began = Clock::now();
    const bool in_time = changed.wait_for(lock, deadline, holds);
    totals.exposed_seconds += seconds_since(began);
    if (!in_time) throw_late(what, seconds_since(began), "look at the disk of memory.disk_path");
  }
  void wait_for_thread(const CopyState& copy);  // until its part is done
  void wait_for_device(const CopyState& copy);
  // With the mutex held: lets go of what has ended on a device.
  void forget_done();

  const std::chrono::milliseconds deadline;
  std::vector<std::shared_ptr<CopyState>> across{};  // the caller's: not seen to have ended
  std::mutex mutex{};                                // guards what follows
  std::condition_variable changed{};
  std::deque<std::shared_ptr<CopyState>> waiting{};
  bool running = false;
  bool closing = false;
  bool ended = false;
  std::exception_ptr failure{};  // of the first that failed
  CopyTotals totals{};
  std::thread thread{};
};

namespace {

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

}  // namespace

void CopyThread::wait_for_thread(const CopyState& copy) {
  std::unique_lock lock(mutex);
  wait(lock, copy.what, [&] { return copy.done || closing; });
  LOCKSTEP_CHECK(copy.done, "waited for ", copy.what, " after its queue was closed");
  if (failure) std::rethrow_exception(failure);
}

void CopyThread::wait_for_device(const CopyState& copy) {
  const double waited = copy.across->wait(deadline, copy.what);
  const std::lock_guard lock(mutex);
  totals.exposed_seconds += waited;
}

void CopyThread::forget_done() {
  std::erase_if(across, [this](const std::shared_ptr<CopyState>& copy) {
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
  state_->queue->wait_for_thread(*state_);
  if (state_->across) state_->queue->wait_for_device(*state_);
  state_.reset();
}

void Copy::order_after() {
  if (!state_) return;
  state_->queue->wait_for_thread(*state_);
  if (state_->across) state_->across->order_after();
  state_.reset();
}

CopyQueue::CopyQueue(std::chrono::milliseconds deadline) : shared_(new CopyThread{.deadline = deadline}) {
  shared_->thread = std::thread([shared = shared_] { shared->work_off(); });
}

CopyQueue::~CopyQueue() {
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  std::deque<std::shared_ptr<CopyState>> left = std::move(shared_->waiting);
  shared_->waiting.clear();
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, shared_->deadline, [this] { return shared_->ended; });
  lock.unlock();
  if (ended)
    shared_->thread.join();
  else
    shared_->thread.detach();  // a disk that never answers: the thread keeps what it uses alive
  shared_->across.clear();
}

std::shared_ptr<DeviceCopy> CopyQueue::across(c10::Device device, std::optional<c10::Stream>& stream) {
  if (!stream) stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
  return std::make_shared<DeviceCopy>(*stream);
}

Copy CopyQueue::add(CopyState state) {
  Copy copy;
  copy.state_ = std::make_shared<CopyState>(std::move(state));
  copy.state_->queue = shared_;
  copy.state_->done = !copy.state_->body;
  const std::lock_guard lock(shared_->mutex);
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  shared_->forget_done();
  shared_->totals.copies += 1;
  shared_->totals.bytes += copy.state_->bytes;
  if (copy.state_->across) shared_->across.push_back(copy.state_);
  if (copy.state_->done) return copy;
  shared_->waiting.push_back(copy.state_);
  shared_->changed.notify_all();
  return copy;
}

Copy CopyQueue::copy(at::Tensor from, at::Tensor to, std::string what) {
  LOCKSTEP_CHECK_EQ(from.numel(), to.numel(), "copy of ", what);
  LOCKSTEP_CHECK(from.is_contiguous() && to.is_contiguous(), "copy of ", what);
  if (from.is_cpu() && to.is_cpu())
    return fill(std::move(to), std::move(what), [from = std::move(from)](const at::Tensor& host) { copy_on_host(from, host); });
  // LibTorch would round into pageable memory and hold the host for the copy. The cores are idle beside a GPU: all may round.
  if (from.scalar_type() != to.scalar_type())
    return fill(std::move(to), std::move(what), [from = std::move(from)](const at::Tensor& host) { host.copy_(from); });
  const std::shared_ptr<DeviceCopy> crossing =
      to.is_cpu() ? across(from.device(), to_host_) : across(to.device(), to_device_);
  const auto bytes = static_cast<int64_t>(to.nbytes());
  Copy copy = add({.what = std::move(what), .bytes = bytes, .across = crossing});
  crossing->start(std::move(from), std::move(to));
  return copy;
}

Copy CopyQueue::fill(at::Tensor to, std::string what, std::function<void(const at::Tensor& host)> write) {
  const auto bytes = static_cast<int64_t>(to.nbytes());
  if (to.is_cpu()) return start(std::move(what), bytes, [to = std::move(to), write = std::move(write)] { write(to); });
  const std::shared_ptr<DeviceCopy> crossing = across(to.device(), to_device_);
  const auto body = [to = std::move(to), write = std::move(write), crossing] {
    const at::Tensor host = at::empty(to.sizes(), to.options().device(at::kCPU).pinned_memory(true));
    write(host);
    crossing->start(host, to);
  };
  return add({.what = std::move(what), .bytes = bytes, .body = body, .across = crossing});
}

Copy CopyQueue::start(std::string what, int64_t bytes, std::function<void()> body) {
  return add({.what = std::move(what), .bytes = bytes, .body = std::move(body)});
}

void CopyQueue::wait() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->wait(lock, "an earlier copy", [this] { return shared_->waiting.empty() && !shared_->running; });
    if (shared_->failure) std::rethrow_exception(shared_->failure);
  }
  for (const std::shared_ptr<CopyState>& copy : shared_->across) shared_->wait_for_device(*copy);
}

CopyTotals CopyQueue::take_totals() {
  const std::lock_guard lock(shared_->mutex);
  shared_->forget_done();
  return std::exchange(shared_->totals, {});
}

}  // namespace lockstep::engine
