#include "lockstep/engine/copy_thread.h"

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/units.h"

namespace lockstep::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

}  // namespace

void CopyThread::wait_for(std::unique_lock<std::mutex>& lock, const std::string& what, const std::function<bool()>& holds) {
  const auto began = Clock::now();
  const bool in_time = changed.wait_for(lock, options.deadline, holds);
  totals.exposed_seconds += seconds_since(began);
  if (!in_time)
    throw EnvironmentError({.code = "LS4014",
                            .what = cat("offload: ", what, " has not ended after ", format_duration(seconds_since(began))),
                            .way_out = "look at the disk of memory.disk_path; the last checkpoint is good: start again to resume"});
}

void CopyThread::wait_for_thread(const CopyState& copy) {
  std::unique_lock lock(mutex);
  wait(lock, copy.what, [&] { return copy.done || closing; });
  LOCKSTEP_CHECK(copy.done, "waited for ", copy.what, " after its queue was closed");
  if (failure) std::rethrow_exception(failure);
}

void CopyThread::wait_for_device(CopyState& copy) {
  const double waited = copy.across->wait(options.deadline, copy.what);
  const std::lock_guard lock(mutex);
  totals.exposed_seconds += waited;
}

void CopyThread::note(const std::shared_ptr<CopyState>& copy) {
  if (failure) std::rethrow_exception(failure);
  forget_done();
  totals.copies += 1;
  totals.bytes += copy->bytes;
  if (copy->across) across.push_back(copy);
}

void CopyThread::forget_done() {
  std::vector<std::shared_ptr<CopyState>> left;
  for (const std::shared_ptr<CopyState>& copy : across) {
    if (copy->done && copy->across->done())
      totals.seconds += copy->across->seconds();
    else
      left.push_back(copy);
  }
  across = std::move(left);
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

}  // namespace lockstep::engine
