// The compute lane of one rank beside what travels: how long work takes while collectives slow it down, and what each second of it went to.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "lockstep/plan/time/breakdown.h"

namespace lockstep::plan {

// Those of one carrier follow each other.
enum class Carrier { kLinks, kNics, kCopies };
inline constexpr size_t kCarriers = 3;

// Something that travels while the rank goes on.
struct Flight {
  Carrier carrier = Carrier::kLinks;
  double ready = 0;          // it begins no earlier ...
  std::vector<int> after{};  // ... and not before these have landed
  double seconds = 0;        // that it takes while nothing is computed
  double loss = 0;           // share of its speed that computing loses beside it
  double drag = 0;           // and that it loses itself beside computing
  BreakdownTerm term = &Breakdown::data;  // that waits for it count as
  double begin = -1, end = -1;            // once they are known
};

class RankLane {
 public:
  double clock() const { return clock_; }
  const Breakdown& spent() const { return spent_; }  // its sum is the clock

  // Until `time`, if that is later. Up to `begin` it counts as bubble: somebody else computes.
  void wait(double begin, double time, BreakdownTerm term);
  // `seconds` is the sum of its parts; longer beside what flies, by what is lost.
  void work(const Breakdown& parts, double seconds);

  // Its number.
  int fly(Flight flight);
  void wait_for(int flight);
  bool has_landed(int flight) const { return flight < first_ || flights_[static_cast<size_t>(flight - first_)].end >= 0; }
  bool flies() const;  // something does

  // A transfer of so many seconds over NICs that begins now: collectives have half of them while they last.
  double shared(double seconds) const;
  // Called as flights land.
  void on_landing(std::function<void(int number, const Flight&)> landed) { landed_ = std::move(landed); }

 private:
  Flight* front(Carrier carrier);
  bool can_begin(const Flight& flight) const;
  // To the next time that something begins or ends, at most `limit`.
  void pass(double limit, BreakdownTerm term);
  double work_until_event(double left);
  void advance(double until, bool computes);

  double clock_ = 0;
  Breakdown spent_{};
  int first_ = 0;  // number of the first of flights_
  std::deque<Flight> flights_{};
  std::array<std::deque<int>, kCarriers> queues_{};
  std::function<void(int number, const Flight&)> landed_{};
};

}  // namespace lockstep::plan
