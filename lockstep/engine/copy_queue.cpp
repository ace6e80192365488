#include "lockstep/engine/copy_queue.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/engine/copy_thread.h"

namespace lockstep::engine {
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

// LibTorch would round into pageable memory and hold the host for the copy. The cores are idle beside a GPU: all may round.
void round_and_start(const at::Tensor& from, const at::Tensor& to, DeviceCopy& across) {
  const at::Tensor rounded = at::empty(to.sizes(), to.options().device(at::kCPU).pinned_memory(true));
  rounded.copy_(from);
  across.start(rounded, to);
}

}  // namespace

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

CopyTotals CopyQueue::take_totals() {
  const std::lock_guard lock(shared_->mutex);
  shared_->forget_done();
  return std::exchange(shared_->totals, {});
}

}  // namespace lockstep::engine
