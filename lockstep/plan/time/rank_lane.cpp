#include "lockstep/plan/time/rank_lane.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/check.h"

namespace lockstep::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::array<Carrier, kCarriers> kAllCarriers = {Carrier::kLinks, Carrier::kNics, Carrier::kCopies};

}  // namespace

Flight* RankLane::front(Carrier carrier) {
  const std::deque<int>& queue = queues_[static_cast<size_t>(carrier)];
  return queue.empty() ? nullptr : &flights_[static_cast<size_t>(queue.front() - first_)];
}

bool RankLane::flies() const {
  return std::ranges::any_of(queues_, [](const std::deque<int>& queue) { return !queue.empty(); });
}

bool RankLane::can_begin(const Flight& flight) const {
  return std::ranges::all_of(flight.after, [&](int other) { return has_landed(other); });
}

int RankLane::fly(Flight flight) {
  const int number = first_ + static_cast<int>(flights_.size());
  flight.ready = std::max(flight.ready, clock_);
  queues_[static_cast<size_t>(flight.carrier)].push_back(number);
  flights_.push_back(std::move(flight));
  return number;
}

// Flights go on to a moment at which none of them ends or begins earlier.
void RankLane::advance(double until, bool computes) {
  for (const Carrier carrier : kAllCarriers) {
    Flight* flight = front(carrier);
    if (!flight || !can_begin(*flight) || flight->ready > clock_) continue;
    if (flight->begin < 0) flight->begin = clock_;
    flight->seconds -= (until - clock_) * (computes ? 1 - flight->drag : 1);
  }
  clock_ = until;
  for (const Carrier carrier : kAllCarriers) {
    Flight* flight = front(carrier);
    // What is left of rounding lands too.
    if (!flight || flight->begin < 0 || flight->seconds > 1e-15 * (1 + clock_)) continue;
    flight->end = clock_;
    std::deque<int>& queue = queues_[static_cast<size_t>(carrier)];
    if (landed_) landed_(queue.front(), *flight);
    queue.pop_front();
  }
  while (!flights_.empty() && flights_.front().end >= 0) {
    flights_.pop_front();
    ++first_;
  }
}

void RankLane::pass(double limit, BreakdownTerm term) {
  double next = limit;
  for (const Carrier carrier : kAllCarriers) {
    const Flight* flight = front(carrier);
    if (!flight || !can_begin(*flight)) continue;
    next = std::min(next, std::max(clock_, flight->ready) + std::max(0.0, flight->ready > clock_ ? 0.0 : flight->seconds));
  }
  LOCKSTEP_CHECK(next < kNever, "a rank waits for what never lands");
  spent_.*term += next - clock_;
  advance(next, false);
}

void RankLane::wait(double begin, double time, BreakdownTerm term) {
  while (clock_ < time) {
    const bool bubble = begin > clock_;
    if (flies()) {
      pass(bubble ? std::min(begin, time) : time, bubble ? &Breakdown::bubble : term);
      continue;
    }
    const double until = bubble ? std::min(begin, time) : time;
    spent_.*(bubble ? &Breakdown::bubble : term) += until - clock_;
    clock_ = until;
  }
}

void RankLane::wait_for(int flight) {
  while (!has_landed(flight)) {
    const BreakdownTerm term = flights_[static_cast<size_t>(flight - first_)].term;
    pass(kNever, term);
  }
}

// What is left of so many seconds of work at the next event.
double RankLane::work_until_event(double left) {
  double next = kNever, loss = 0;
  BreakdownTerm term = &Breakdown::data;
  for (const Carrier carrier : kAllCarriers) {
    const Flight* flight = front(carrier);
    if (!flight || !can_begin(*flight)) continue;
    if (flight->ready > clock_) {
      next = std::min(next, flight->ready);
      continue;
    }
    next = std::min(next, clock_ + flight->seconds / std::max(1e-9, 1 - flight->drag));
    if (flight->loss <= loss) continue;
    loss = std::min(1.0, flight->loss);
    term = flight->term;
  }
  const double rate = 1 - loss, done = rate > 0 ? clock_ + left / rate : kNever;
  LOCKSTEP_CHECK(std::min(done, next) < kNever, "work beside a flight that never lands");
  const double until = std::min(done, next), span = until - clock_;
  spent_.*term += span * loss;
  advance(until, true);
  return done <= next ? 0 : left - span * rate;
}

void RankLane::work(const Breakdown& parts, double seconds) {
  add(spent_, parts);
  while (seconds > 0 && flies()) seconds = work_until_event(seconds);
  clock_ += seconds;
}

double RankLane::shared(double seconds) const {
  double left = 0;
  for (const int number : queues_[static_cast<size_t>(Carrier::kNics)]) left += flights_[static_cast<size_t>(number - first_)].seconds;
  return 2 * seconds <= left ? 2 * seconds : seconds + left / 2;
}

}  // namespace lockstep::plan
