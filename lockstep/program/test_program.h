// Programs for tests to change, and sums that tests alone ask for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// What `rank` runs, as a list that no other rank runs: to be changed. Valid until another rank is given one.
inline std::vector<Action>& own_list(Program& program, int rank) {
  int32_t& own = program.list_of.at(static_cast<size_t>(rank));
  if (std::ranges::count(program.list_of, own) > 1) {
    std::vector<Action> copy = program.list(rank);
    own = static_cast<int32_t>(program.lists.size());
    program.lists.push_back(std::move(copy));
  }
  return program.lists.at(static_cast<size_t>(own));
}

// Every rank runs the same, however it is shared.
inline bool operator==(const Program& a, const Program& b) {
  if (a.list_of.size() != b.list_of.size() || a.buckets != b.buckets || a.channel_depth != b.channel_depth) return false;
  for (int rank = 0; rank < a.world_size(); ++rank)
    if (a.list(rank) != b.list(rank)) return false;
  return true;
}

// Of all calls.
inline int64_t sent_total(const Ledger& ledger) {
  int64_t total = 0;
  for (const auto& [key, entry] : ledger.entries()) total += entry.sent_total();
  return total;
}

}  // namespace lockstep::program
