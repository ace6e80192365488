// Which actions of different ranks belong together.
#pragma once

#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::plan {

struct ActionRef {
  int rank = -1;
  int index = -1;  // in the rank's list
  bool operator==(const ActionRef&) const = default;
};

// Of a table by rank and index.
template <typename Table>
decltype(auto) of_action(Table& table, const ActionRef& ref) {
  return table[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
}

// A SEND and its RECV: the k-th of each on a channel. There is one for every ordered pair of ranks and direction.
struct Transfer {
  ActionRef send, recv;
};
// A collective: the k-th of each rank of the group among those over just these ranks.
struct Meeting {
  std::vector<int> group;
  std::vector<ActionRef> actions;  // in the order of the group
};
struct Matching {
  std::vector<Transfer> transfers;
  std::vector<Meeting> meetings;
  // By rank and action: index into one of the two, or -1.
  std::vector<std::vector<int>> transfer_of, meeting_of;
};

// InternalError where sends and receives, or the calls of a group, do not match: verify() finds that before.
Matching match(const program::Program& program, const program::Layout& layout);

}  // namespace lockstep::plan
