#include "lockstep/comm/nccl_lane.h"

#include <thread>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {
namespace {

using std::chrono::duration;

// Between two looks at a call that the device has not taken in yet: microseconds as a rule, seconds where NCCL connects.
void pause(int round) {
  if (round < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace

std::exception_ptr nccl_problem(const NcclFailure& failure, const std::string& doing) {
  const std::string what = cat(failure.what(), "\n  in ", doing);
  if (failure.peer_lost)
    return std::make_exception_ptr(
        PeerLostError({.code = "LS3002", .what = what, .way_out = "the logs of the other ranks may say why"}));
  return std::make_exception_ptr(EnvironmentError(
      {.code = "LS3042", .what = what, .way_out = "NCCL_DEBUG=INFO in the environment makes NCCL say more"}));
}

// A call in flight, and the handle that its caller holds.
class NcclLane::Flight : public NativeWork {
 public:
  Flight(NativeCall call, std::shared_ptr<const NcclVerdict> verdict)
      : call_(std::move(call)), verdict_(std::move(verdict)) {}

  void wait() override {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (const auto problem = verdict_->failure()) std::rethrow_exception(problem);  // what went in may be worthless
    try {
      ticket_->order_after();
    } catch (const NcclFailure& failure) {
      std::rethrow_exception(nccl_problem(failure, call_.progress.call.text()));
    }
    let_tensors_go();
  }
  bool done() const override {
    const std::lock_guard lock(mutex_);
    try {
      return finished_ || failure_ || ticket_->done();
    } catch (const NcclFailure&) {
      return false;  // the watch meets it too and says what it was
    }
  }
  double exposed_seconds() const override { return launch_seconds_; }

  // By the lane.
  void launched(std::unique_ptr<NcclTicket> ticket, double seconds) {
    ticket_ = std::move(ticket);
    launch_seconds_ = seconds;
  }
  const NativeCall& call() const { return call_; }
  const NcclTicket& ticket() const { return *ticket_; }
  void finish(std::exception_ptr problem) {
    if (call_.left) call_.left();
    const std::lock_guard lock(mutex_);
    finished_ = true;
    failure_ = std::move(problem);
    let_tensors_go();
    call_.left = {};
    call_.explain = {};
  }
  std::exception_ptr explained(std::exception_ptr problem) const {
    return call_.explain ? call_.explain(problem) : problem;
  }

  Clock::time_point waits_since{};  // of the first in flight: it could run since then

 private:
  void let_tensors_go() {
    call_.input.reset();
    call_.output.reset();
  }

  mutable std::mutex mutex_;  // guards what follows, but for ticket_ and launch_seconds_, which are set before use
  NativeCall call_;
  const std::shared_ptr<const NcclVerdict> verdict_;
  std::unique_ptr<NcclTicket> ticket_;
  double launch_seconds_ = 0;
  bool finished_ = false;
  std::exception_ptr failure_;
};

NcclLane::NcclLane(std::unique_ptr<NcclGroup> group, std::shared_ptr<JobBoard> board,
                   std::shared_ptr<NcclVerdict> verdict, NcclLaneOptions options)
    : options_(std::move(options)), board_(std::move(board)), verdict_(std::move(verdict)), group_(std::move(group)) {}

void NcclLane::join() {
  wait_until_ready({.call = named_label("the making")});
}

void NcclLane::close() noexcept {
  try {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      // Where no call is under way nobody's results are lost, and the other groups may go on.
      if (!look() && in_flight())
        fail(std::make_exception_ptr(
            PeerLostError({.code = "LS3003", .what = cat("group ", options_.name, " was closed by an error")})));
    } else {
      while (!look() && in_flight()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      {
        const std::lock_guard lock(mutex_);
        if (!failure_) group_->close();
      }
      wait_until_ready({.call = named_label("the closing")});
    }
  } catch (const std::exception&) {
    fail(std::current_exception());  // known to those who asked for a result; here nobody does
  }
  const std::lock_guard lock(mutex_);
  group_.reset();  // aborted, unless it was closed
}

std::shared_ptr<NativeWork> NcclLane::start(NativeCall call) {
  const auto began = Clock::now();
  if (const auto problem = verdict_->failure()) std::rethrow_exception(problem);
  auto flight = std::make_shared<Flight>(std::move(call), verdict_);
  Progress inside = flight->call().progress;
  inside.inside = true;
  std::unique_ptr<NcclTicket> ticket;
  try {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      launching_ = flight.get();
      board_->set(options_.name, inside);
      ticket = group_->launch(flight->call());
    }
    wait_until_ready(inside);
    ticket->mark();
  } catch (const NcclFailure& failure) {
    fail(nccl_problem(failure, cat(inside.call.text(), " of group ", options_.name)));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    launching_ = nullptr;
    throw;
  }
  const std::lock_guard lock(mutex_);
  launching_ = nullptr;
  if (failure_) std::rethrow_exception(failure_);
  flight->launched(std::move(ticket), duration<double>(Clock::now() - began).count());
  flights_.push_back(flight);
  return flight;
}

// Throws failure_, where the watch has found one or the deadline passes here.
void NcclLane::wait_until_ready(const Progress& progress) {
  const auto began = Clock::now();
  for (int round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      try {
        if (group_->ready()) return;
      } catch (const NcclFailure& failure) {
        give_up(nccl_problem(failure, cat(progress.call.text(), " of group ", options_.name)));
        std::rethrow_exception(failure_);
      }
    }
    const auto waited = Clock::now() - began;
    if (waited > options_.deadline) fail(overdue(progress, duration<double>(waited).count()));
    pause(round);
  }
}

std::exception_ptr NcclLane::look() {
  const std::lock_guard looking(looking_);
  Progress progress;
  double waited = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || !group_) return failure_;
    try {
      take_done();
      // NCCL watches its connections, also while nothing of ours is in flight.
      group_->ready();
    } catch (const NcclFailure& failure) {
      const std::string doing = flights_.empty() ? "no call" : flights_.front()->call().progress.call.text();
      give_up(nccl_problem(failure, cat(doing, " of group ", options_.name)));
      return failure_;
    }
    if (flights_.empty()) return nullptr;
    Flight& first = *flights_.front();
    if (std::exchange(watched_, &first) != &first) beats_.clear();
    const auto now = Clock::now();
    if (first.waits_since == Clock::time_point{}) {
      if (first.ticket().reached()) first.waits_since = now;
      return nullptr;
    }
    if (now - first.waits_since < options_.deadline / 2) return nullptr;
    waited = duration<double>(now - first.waits_since).count();
    progress = first.call().progress;
  }
  // Without the lock: the store may take its time.
  if (beats_.empty())
    for (const int rank : options_.ranks) beats_[rank] = board_->beat(rank);
  if (waited < duration<double>(options_.deadline).count()) return nullptr;
  const std::exception_ptr problem = overdue(progress, waited);
  fail(problem);
  return problem;
}

void NcclLane::take_done() {
  while (!flights_.empty() && flights_.front()->ticket().done()) {
    const Progress outside = flights_.front()->call().progress;
    flights_.front()->finish(nullptr);
    flights_.pop_front();
    if (flights_.empty() && !launching_) board_->set(options_.name, outside);
  }
}

void NcclLane::fail(std::exception_ptr problem) {
  const std::lock_guard lock(mutex_);
  if (!failure_) give_up(std::move(problem));
}

void NcclLane::give_up(std::exception_ptr problem) {
  const Flight* first = flights_.empty() ? launching_ : flights_.front().get();
  failure_ = first ? first->explained(problem) : problem;
  // Before the abort, as what it cuts short looks done on the device: whoever then sees a result of it on the host, here or on
  // a peer, finds the verdict when he asks (Communicator::confirm).
  verdict_->fail(failure_);
  for (const std::shared_ptr<Flight>& flight : flights_) flight->finish(failure_);
  flights_.clear();
  try {
    if (group_) group_->abort();
  } catch (const NcclFailure&) {
    // What stopped us before says more.
  }
}

bool NcclLane::in_flight() const {
  const std::lock_guard lock(mutex_);
  return !flights_.empty();
}

std::exception_ptr NcclLane::overdue(const Progress& progress, double waited_seconds) {
  try {
    const MemberReport own{.rank = board_->rank(), .sequence = progress.sequence, .inside = true, .call = progress.call.text()};
    const auto missing = missing_member(*board_, options_.name, options_.ranks, own, beats_);
    if (missing) return std::make_exception_ptr(lost_member(*missing, own, options_.name, waited_seconds));
  } catch (const Error&) {
    return std::current_exception();  // the store has gone: it says so
  }
  return std::make_exception_ptr(PeerLostError(
      {.code = "LS3002",
       .what = cat(progress.call.text(), " of group ", options_.name, " has not ended after ", format_duration(waited_seconds),
                   ", and all its ranks have entered it"),
       .way_out = "the network between the GPUs: NCCL_DEBUG=INFO in the environment makes NCCL say more"}));
}

}  // namespace lockstep::comm
