#include "lockstep/comm/nccl_verdict.h"

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

std::string text_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void NcclVerdict::fail(const std::exception_ptr& problem) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = problem;
  try {
    board_->give_up(text_of(problem));
  } catch (const Error&) {
    // The store has gone, and with it the job: nobody can ask it, and who tries is told.
  }
}

std::exception_ptr NcclVerdict::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclVerdict::confirm() {
  if (const auto problem = failure()) std::rethrow_exception(problem);
  const auto other = board_->given_up();
  if (!other) return;
  const std::lock_guard lock(mutex_);
  if (!failure_)
    failure_ = std::make_exception_ptr(PeerLostError(
        {.code = "LS3003", .what = cat("rank ", other->rank, " has given up its calls:\n  ", other->reason)}));
  std::rethrow_exception(failure_);
}

}  // namespace lockstep::comm
