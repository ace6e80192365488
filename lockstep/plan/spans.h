// When every action of a step runs, be it simulated or measured, and what follows from it; and which actions of different ranks
// belong together.
#pragma once

#include <compare>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::plan {

struct Span {
  double start = 0;  // since the beginning of the step
  double end = 0;
  double seconds() const { return end - start; }
};

// One for each action of each rank, as Program::ranks. What a rank computes lies in the order of its list and does not
// overlap; communication and copies begin where they stand and may overlap with all else. A computing action begins once
// what it uses is there, so that the gaps between them are waiting. A RECV begins when it is posted and its data is on the
// way, and ends when they have come; a collective begins when the last rank has come to it.
using Spans = std::vector<std::vector<Span>>;

// How busy F, B, I, W and RECOMPUTE keep the ranks.
struct Utilisation {
  double step_seconds = 0;      // end of the last action
  double pipeline_seconds = 0;  // end of the last F, B, I, W or RECOMPUTE of any rank
  double longest_window = 0;    // of all ranks: from the first of them to the last
  std::vector<double> busy;     // of each rank: time spent with them
  double mean_busy() const;
  // 1 - work / longest window, as papers count it: ranks that begin and end one after the other have none.
  double bubble() const;
  // The share of pipeline_seconds in which the rank does nothing of them; and the mean over the ranks.
  double idle(int rank) const;
  double idle() const;
};
Utilisation utilisation(const program::Program& program, const Spans& spans);

// Of an even number of values the mean of both in the middle. There is at least one.
double median(std::vector<double> values);

struct ActionRef {
  int rank = -1;
  int index = -1;  // in the rank's list
  auto operator<=>(const ActionRef&) const = default;
};

// Of a table by rank and index.
template <typename Table>
decltype(auto) of_action(Table& table, const ActionRef& ref) {
  return table[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
}

// A SEND and its RECV: the k-th of each on a channel. There is one for every ordered pair of ranks and direction.
struct Transfer {
  ActionRef send, recv;
  ActionRef user{};  // what computes with it first; without a rank: nothing does
};
// A collective: the k-th of each rank of a group among those over just these ranks.
struct Meeting {
  int group = -1;                    // by its first meeting
  std::vector<ActionRef> actions{};  // of all its ranks, ascending
};
struct Matching {
  std::vector<Transfer> transfers;
  std::vector<Meeting> meetings;
  // By rank and action: index into one of the two, or -1.
  std::vector<std::vector<int>> transfer_of, meeting_of;
};

// InternalError where sends and receives, or the calls of a group, do not match: verify() finds that before.
Matching match(const program::Program& program, const program::Layout& layout);

// The last action that computes up to this one of its rank; without a rank: there is none.
ActionRef computed_up_to(const program::Program& program, ActionRef ref);

}  // namespace lockstep::plan
