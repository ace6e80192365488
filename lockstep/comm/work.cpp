#include "lockstep/comm/work_state.h"

namespace lockstep::comm {

void Work::wait() {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    const auto began = std::chrono::steady_clock::now();
    state_->changed.wait(lock, [this] { return state_->done; });
    state_->exposed_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  if (state_->failure) std::rethrow_exception(state_->failure);
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

double Work::exposed_seconds() const {
  if (!state_) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->exposed_seconds;
}

}  // namespace lockstep::comm
