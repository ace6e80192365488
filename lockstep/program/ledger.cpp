#include "lockstep/program/ledger.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::program {

int64_t LedgerEntry::sent_total() const {
  int64_t total = 0;
  for (const auto& [peer, bytes] : sent) total += bytes;
  return total;
}

namespace {

// Calls of one key are alike.
void add(AtRunTime& to, const AtRunTime& from) {
  to = {.decided = to.decided || from.decided, .most = std::max(to.most, from.most), .in_rounds = to.in_rounds || from.in_rounds};
}

}  // namespace

void Ledger::add(const LedgerKey& key, int64_t payload, std::map<int, int64_t> sent, int64_t times, const AtRunTime& at_run_time) {
  LedgerEntry& entry = entries_[key];
  program::add(entry.at_run_time, at_run_time);
  entry.count += times;
  entry.payload += times * payload;
  if (times == 1 && entry.sent.empty()) return entry.sent.swap(sent);  // to very many peers
  auto at = entry.sent.begin();  // both in the order of the peers
  for (const auto& [peer, bytes] : sent) {
    at = entry.sent.try_emplace(at, peer, 0);
    (at++)->second += times * bytes;
  }
}

void Ledger::merge(const Ledger& other) {
  for (const auto& [key, from] : other.entries_) {
    LedgerEntry& entry = entries_[key];
    entry.count += from.count;
    entry.payload += from.payload;
    program::add(entry.at_run_time, from.at_run_time);
    for (const auto& [peer, bytes] : from.sent) entry.sent[peer] += bytes;
  }
}

std::vector<std::tuple<std::string, LedgerKey, LedgerEntry>> Ledger::printed() const {
  std::vector<std::tuple<std::string, LedgerKey, LedgerEntry>> lines;
  for (const auto& [key, entry] : entries_) lines.emplace_back(call_text(key.id), key, entry);
  // Keys of one text have one id: they stand in their own order already.
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
  return lines;
}

namespace {

std::string text_of(const LedgerKey& key) {
  return cat(call_text(key.id), ": ", collective_name(key.collective), " over ", key.axis, " (", algorithm_name(key.algorithm),
             ")");
}

std::string text_of(const LedgerEntry& entry) {
  std::vector<std::string> links;
  for (const auto& [peer, bytes] : entry.sent) links.push_back(cat(bytes, " B to rank ", peer));
  const AtRunTime& about = entry.at_run_time;
  return cat(entry.count, about.in_rounds ? " or more" : "", " calls of ", about.decided ? "about " : "", entry.payload, " B in all",
             about.decided ? cat(", at most ", about.most, " B each") : std::string(), ", sent ",
             links.empty() ? "nothing" : join(links, ", "));
}

// As far as the data does not make it.
bool agree(const LedgerEntry& predicted, const LedgerEntry& recorded) {
  const AtRunTime& about = predicted.at_run_time;
  if (!about.decided) return predicted == recorded;
  const bool calls = about.in_rounds ? recorded.count >= predicted.count : recorded.count == predicted.count;
  return calls && std::max(recorded.payload, recorded.sent_total()) <= recorded.count * about.most;
}

}  // namespace

std::vector<std::string> Ledger::difference(const Ledger& predicted, const Ledger& recorded) {
  std::vector<std::string> lines;
  for (const auto& [key, entry] : predicted.entries_) {
    const auto found = recorded.entries_.find(key);
    if (found == recorded.entries_.end()) {
      lines.push_back(cat(text_of(key), ": predicted ", text_of(entry), "; not recorded"));
    } else if (!agree(entry, found->second)) {
      lines.push_back(cat(text_of(key), ": predicted ", text_of(entry), "; recorded ", text_of(found->second)));
    }
  }
  for (const auto& [key, entry] : recorded.entries_) {
    if (!predicted.entries_.contains(key)) {
      lines.push_back(cat(text_of(key), ": not predicted; recorded ", text_of(entry)));
    }
  }
  return lines;
}

}  // namespace lockstep::program
