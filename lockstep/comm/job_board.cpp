#include "lockstep/comm/job_board.h"

#include <cstdlib>

#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// For keys that are known to be there.
constexpr milliseconds kSoon{10000};

std::string key_of(int rank) { return cat("board/", rank); }

// Of a note; see own_note().
struct Line {
  int64_t sequence = 0;
  bool inside = false;
  double seconds = 0;
  int waits_for = -1;
  int awaiting = 0;
  std::string group{};
  std::string call{};
};

std::vector<Line> lines_of(const std::string& note) {
  std::vector<Line> lines;
  for (const std::string& text : split(note, '\n')) {
    const std::vector<std::string> parts = split(text, '\t');
    if (parts.size() != 7) continue;
    lines.push_back({.sequence = std::atoll(parts[0].c_str()),
                     .inside = parts[1] == "1",
                     .seconds = std::atof(parts[2].c_str()),
                     .waits_for = std::atoi(parts[3].c_str()),
                     .awaiting = std::atoi(parts[4].c_str()),
                     .group = parts[5],
                     .call = parts[6]});
  }
  return lines;
}

// "<rank>\n<reason>"
JobBoard::Abort abort_of(const std::string& note) {
  return {.rank = std::atoi(note.c_str()), .reason = note.substr(note.find('\n') + 1)};
}

}  // namespace

JobBoard::JobBoard(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

void JobBoard::set(const std::string& group, const Progress& progress) {
  const std::lock_guard lock(mutex_);
  Doing& doing = doing_[group];
  if (progress.sequence < doing.progress.sequence) return;  // calls on the host and on the device overtake each other
  doing.progress = progress;
  doing.changed = steady_clock::now();
}

void JobBoard::set_wait(const std::string& group, int waits_for) {
  const std::lock_guard lock(mutex_);
  doing_[group].waits_for = waits_for;
}

void JobBoard::add_awaiting(const std::string& group, int change) {
  const std::lock_guard lock(mutex_);
  doing_[group].awaiting += change;
}

uint64_t JobBoard::key(const std::string& group) { return hash64(group); }

// A line for the number of the note, then one for each group, tabs between the fields: sequence, inside, seconds, whom it
// waits for, threads kept by it, name, call.
std::string JobBoard::own_note(int64_t number) const {
  std::string note = cat(number, "\n");
  for (const auto& [group, doing] : doing_) {
    const double seconds = duration<double>(steady_clock::now() - doing.changed).count();
    note += cat(doing.progress.sequence, "\t", doing.progress.inside ? 1 : 0, "\t", seconds, "\t", doing.waits_for, "\t",
                doing.awaiting, "\t", group, "\t", doing.progress.call.text(), "\n");
  }
  return note;
}

void JobBoard::publish() {
  std::string note;
  {
    const std::lock_guard lock(mutex_);
    note = own_note(++published_);
  }
  store_->set(key_of(rank_), note);
}

MemberReport JobBoard::report(int rank, const std::string& group) { return report(rank, key(group)); }

MemberReport JobBoard::report(int rank, uint64_t group) {
  MemberReport report{.rank = rank};
  if (!store_->has(key_of(rank))) {
    report.state = MemberReport::State::kNeverJoined;
    return report;
  }
  report.state = MemberReport::State::kNeverMadeGroup;
  for (const Line& line : lines_of(store_->get(key_of(rank), kSoon))) {
    if (key(line.group) != group) continue;
    report.state = MemberReport::State::kThere;
    report.sequence = line.sequence;
    report.inside = line.inside;
    report.seconds_ago = line.seconds;
    report.call = line.call;
  }
  return report;
}

std::vector<GroupWait> JobBoard::waits(int rank) {
  std::vector<GroupWait> waits;
  if (!store_->has(key_of(rank))) return waits;
  for (const Line& line : lines_of(store_->get(key_of(rank), kSoon)))
    waits.push_back({.group = key(line.group), .waits_for = line.waits_for, .awaited = line.awaiting > 0, .call = line.call});
  return waits;
}

int64_t JobBoard::beat(int rank) {
  return store_->has(key_of(rank)) ? std::atoll(store_->get(key_of(rank), kSoon).c_str()) : 0;
}

void JobBoard::abort(const std::string& reason) {
  if (store_->add("board/aborts", 1) == 1) store_->set("board/abort", cat(rank_, "\n", reason));
}

std::optional<JobBoard::Abort> JobBoard::aborted() {
  if (!store_->has("board/abort")) return std::nullopt;
  return abort_of(store_->get("board/abort", kSoon));
}

// The store answers an add, not a set: when it has, both are there.
void JobBoard::give_up(const std::string& reason) {
  store_->set("board/gave up", cat(rank_, "\n", reason));
  store_->add("board/given up", 1);
}

std::optional<JobBoard::Abort> JobBoard::given_up() {
  if (store_->add("board/given up", 0) == 0) return std::nullopt;
  return abort_of(store_->get("board/gave up", kSoon));
}

std::optional<MemberReport> missing_member(JobBoard& board, const std::string& group, const std::vector<int>& ranks,
                                           const MemberReport& own, const std::map<int, int64_t>& beats) {
  std::optional<MemberReport> silent;
  for (const int rank : ranks) {
    if (rank == own.rank) continue;
    MemberReport report = board.report(rank, group);
    const bool came = report.state == MemberReport::State::kThere && report.sequence >= own.sequence;
    if (!came) return report;
    const auto before = beats.find(rank);
    if (!silent && before != beats.end() && board.beat(rank) == before->second) {
      report.state = MemberReport::State::kSilent;
      silent = report;
    }
  }
  return silent;
}

Missing follow_on_board(JobBoard& board, const Waiting& first, const std::set<int>& silent) {
  Missing missing;
  missing.chain = follow_waits(first, [&](const Waiting& wait) {
    return silent.contains(wait.waits_for) ? std::nullopt : kept_by(board.waits(wait.waits_for), wait.group);
  });
  const Waiting& last = missing.chain.back();
  missing.report = board.report(last.waits_for, last.group);
  if (silent.contains(last.waits_for) && missing.report.state == MemberReport::State::kThere)
    missing.report.state = MemberReport::State::kSilent;
  return missing;
}

}  // namespace lockstep::comm
