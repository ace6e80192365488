#include "lockstep/train/verify_traffic.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::train {
namespace {

using program::Ledger;
using program::LedgerKey;

constexpr size_t kLinesOfARank = 4;

// Calls of an update that is made once more: the list from there on (Executor::step).
Ledger ledger_of_update(const program::Layout& layout, const program::Program& program, int rank) {
  const std::vector<program::Action>& list = program.list(rank);
  const auto update = std::ranges::find_if(list, program::updates, &program::Action::kind);
  program::Program again{.buckets = program.buckets, .channel_depth = program.channel_depth};
  again.lists.emplace_back(update, list.end());
  again.list_of.assign(program.list_of.size(), 0);
  return program::predict_ledger(layout, again, rank);
}

// What is at most printed of a rank's lines.
std::string shortened(std::vector<std::string> lines) {
  const size_t left_out = lines.size() - std::min(lines.size(), kLinesOfARank);
  lines.resize(lines.size() - left_out);
  if (left_out > 0) lines.push_back(cat("and ", left_out, " more calls"));
  return join(lines, "\n");
}

// Of every owner, in the order in which the ranks of the stages come to them: alike on all ranks.
std::vector<LedgerKey> sites_at_run_time(const program::Layout& layout, const program::Program& program) {
  std::vector<LedgerKey> sites;
  for (const int rank : program::stage_ranks(layout))
    for (const program::RepeatedCalls& repeated : program::repeated_calls(layout, program, rank))
      for (const program::CallOfRank& call : repeated.calls) {
        LedgerKey key = call.key;
        key.id = key.id.of_every_owner();
        if (call.at_run_time.decided && std::ranges::find(sites, key) == sites.end()) sites.push_back(key);
      }
  return sites;
}

struct Sum {
  int64_t calls = 0, bytes = 0;
};
Sum sum_of(const Ledger& ledger, const LedgerKey& site) {
  Sum sum;
  for (const auto& [key, entry] : ledger.entries()) {
    LedgerKey of_every_owner = key;
    of_every_owner.id = key.id.of_every_owner();
    if (of_every_owner != site) continue;
    sum.calls += entry.count;
    sum.bytes += entry.sent_total();
  }
  return sum;
}

}  // namespace

TrafficCheck::TrafficCheck(const engine::Executor& executor, engine::Groups& groups)
    : executor_(executor), groups_(groups), predicted_(program::predict_ledger(executor.layout(), executor.program(), groups.rank())) {}

void TrafficCheck::begin() { groups_.take_ledger(); }

std::vector<std::string> TrafficCheck::judge(bool taken_back) {
  found_ = groups_.take_ledger();
  expected_ = predicted_;
  if (taken_back) expected_.merge(ledger_of_update(executor_.layout(), executor_.program(), groups_.rank()));
  const std::string mine = shortened(Ledger::difference(expected_, found_));
  std::vector<std::string> lines;
  int rank = 0;
  for (const std::string& text : comm::gather_texts(groups_.world(), program::call_id(program::Purpose::kVerdict), mine)) {
    if (!text.empty())
      for (const std::string& line : split(text, '\n')) lines.push_back(cat("sent by rank ", rank, ": ", line));
    ++rank;
  }
  as_predicted_ = as_predicted_ && lines.empty();
  return lines;
}

VerifyTraffic TrafficCheck::report() const {
  VerifyTraffic traffic{.as_predicted = as_predicted_};
  const std::vector<LedgerKey> sites = sites_at_run_time(executor_.layout(), executor_.program());
  if (sites.empty()) return traffic;  // on all ranks alike
  std::vector<int64_t> mine;
  for (const LedgerKey& key : sites) mine.push_back(sum_of(found_, key).bytes);
  const std::vector<std::vector<int64_t>> all = comm::gather_numbers(groups_.world(), program::call_id(program::Purpose::kVerdict), mine);
  for (size_t i = 0; i < sites.size(); ++i) {
    const Sum expected = sum_of(expected_, sites[i]), found = sum_of(found_, sites[i]);
    const auto most = std::ranges::max_element(all, {}, [i](const std::vector<int64_t>& rank) { return rank[i]; });
    traffic.at_run_time.push_back({.site = call_text(sites[i].id),
                                   .axis = sites[i].axis,
                                   .predicted_calls = expected.calls,
                                   .calls = found.calls,
                                   .predicted_bytes = expected.bytes,
                                   .bytes = found.bytes,
                                   .most_bytes = (*most)[i],
                                   .most_rank = static_cast<int>(most - all.begin())});
  }
  return traffic;
}

}  // namespace lockstep::train
