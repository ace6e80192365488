#include "lockstep/program/program.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::program {
Program Program::of_ranks(std::vector<std::vector<Action>> ranks) {
  Program program;
  for (std::vector<Action>& actions : ranks) {
    const auto known = std::ranges::find(program.lists, actions);
    program.list_of.push_back(static_cast<int32_t>(known - program.lists.begin()));
    if (known == program.lists.end()) program.lists.push_back(std::move(actions));
  }
  return program;
}

std::vector<int> Program::first_ranks() const {
  std::vector<int> first(lists.size(), -1);
  size_t found = 0;
  for (size_t rank = 0; rank < list_of.size() && found < lists.size(); ++rank) {
    int& of_list = first.at(static_cast<size_t>(list_of[rank]));
    if (of_list >= 0) continue;
    of_list = static_cast<int>(rank);
    ++found;
  }
  LOCKSTEP_CHECK_EQ(found, lists.size(), "lists that a rank runs, and all of them");
  return first;
}

bool Program::operator==(const Program& other) const {
  if (list_of.size() != other.list_of.size() || buckets != other.buckets || channel_depth != other.channel_depth) return false;
  std::set<std::pair<int32_t, int32_t>> same;
  for (size_t rank = 0; rank < list_of.size(); ++rank) {
    const std::pair pair(list_of[rank], other.list_of[rank]);
    if (same.contains(pair)) continue;
    if (list(static_cast<int>(rank)) != other.list(static_cast<int>(rank))) return false;
    same.insert(pair);
  }
  return true;
}

}  // namespace lockstep::program
