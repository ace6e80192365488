// What the members of a group send each other in a step: the sends of its planned calls (program/ledger.h), summed. By place in the group, so
// that it is counted once for all groups that make the same calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {

struct GroupSends {
  struct Send {
    int to = 0;  // place
    double bytes = 0;
  };
  program::GroupRef group{};
  std::string axis{};         // as the ledger names it
  bool synchronises = false;  // gradients or parameters of ranks that hold the same ones
  // Member i sends by_sender[i] + by_receiver[j] to every other member j: the direct collectives in which all send to all, whose pairs are
  // too many to count one by one. Empty: there is none.
  std::vector<double> by_sender{}, by_receiver{};
  std::vector<std::vector<Send>> others{};  // beside these; by sender, each list by receiver. Empty: there is none

  // `times` calls; of `call` the ranks of the group do not matter, but how many they are.
  void add(const program::CollectiveCall& call, double times);
  // What one of `size` members sends to each of some others, by receiver in ascending order.
  void add_sends(int size, int from, const std::vector<Send>& sent);
};

// How often a whole step has what a list has `times` times: program::RepeatedCalls of a rank.
using CallsOfStep = std::function<std::vector<program::RepeatedCalls>(int rank)>;

// Of the groups in which `rank` is, for the ranks of its class (program::RankClasses); without actions that differ by shard (shard_sends.h).
std::vector<GroupSends> sends_of_class(const program::Layout& layout, const std::vector<program::RepeatedCalls>& calls);

}  // namespace lockstep::plan
