#include "lockstep/plan/cluster/group_sends.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

namespace lockstep::plan {
namespace {

using program::Algorithm;
using program::Collective;

std::map<int, double> sent_by(const GroupSends& sends, int size, int from) {
  std::map<int, double> sent;
  if (!sends.by_sender.empty())
    for (int to = 0; to < size; ++to)
      if (to != from) sent[to] += sends.by_sender[static_cast<size_t>(from)] + sends.by_receiver[static_cast<size_t>(to)];
  if (!sends.others.empty())
    for (const GroupSends::Send& send : sends.others[static_cast<size_t>(from)]) sent[send.to] += send.bytes;
  std::erase_if(sent, [](const auto& entry) { return entry.second == 0; });
  return sent;
}

std::vector<program::CollectiveCall> calls_of(int size, int64_t numel) {
  std::vector<int> group(static_cast<size_t>(size));
  std::iota(group.begin(), group.end(), 0);
  std::vector<program::CollectiveCall> calls;
  for (size_t collective = 0; collective < program::kCollectiveNames.size(); ++collective)
    for (size_t algorithm = 0; algorithm < program::kAlgorithmNames.size(); ++algorithm)
      for (const int root : {0, size - 1})
        if (program::supports(static_cast<Collective>(collective), static_cast<Algorithm>(algorithm)))
          calls.push_back({.collective = static_cast<Collective>(collective),
                           .algorithm = static_cast<Algorithm>(algorithm),
                           .group = group,
                           .numel = numel,
                           .element_size = 2,
                           .root = root});
  return calls;
}

// Every collective by every algorithm, in one sum: with fewer elements than members, as many, uneven numbers.
TEST(GroupSendsTest, AreTheSendsOfTheLedger) {
  for (const int size : {2, 3, 5, 8})
    for (const int64_t numel : {1, 3, 8, 41}) {
      GroupSends all;
      std::vector<std::map<int, double>> expected(static_cast<size_t>(size));
      double times = 1;
      for (const program::CollectiveCall& call : calls_of(size, numel)) {
        all.add(call, times);
        for (int place = 0; place < size; ++place)
          for (const auto& [to, bytes] : program::predicted_sends(call, place))
            expected[static_cast<size_t>(place)][to] += times * static_cast<double>(bytes);
        times += 1;  // another number of each
      }
      for (int place = 0; place < size; ++place) EXPECT_EQ(sent_by(all, size, place), expected[static_cast<size_t>(place)]) << size << " " << numel;
    }
}

}  // namespace
}  // namespace lockstep::plan
