#include "lockstep/comm/work_state.h"

namespace lockstep::comm {

void Work::wait() {
  if (!state_) return;
  if (state_->native) return state_->native->wait();
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    const auto began = std::chrono::steady_clock::now();
    ++state_->waiting;
    state_->transport->add_awaiting(1);
    state_->changed.wait(lock, [this] { return state_->done; });
    state_->seconds = state_->seconds + std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
}

bool Work::done() const {
  if (!state_) return true;
  if (state_->native) return state_->native->done();
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

double Work::exposed_seconds() const {
  if (!state_) return 0;
  if (state_->native) return state_->native->exposed_seconds();
  return state_->seconds;
}

}  // namespace lockstep::comm
