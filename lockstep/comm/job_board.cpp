#include "lockstep/comm/job_board.h"

#include <cstdlib>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// For keys that are known to be there.
constexpr milliseconds kSoon{10000};

std::string key_of(int rank) { return cat("board/", rank); }

}  // namespace

JobBoard::JobBoard(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

void JobBoard::set(const std::string& group, const Progress& progress) {
  const std::lock_guard lock(mutex_);
  Doing& doing = doing_[group];
  if (progress.sequence < doing.progress.sequence) return;  // calls on the host and on the device overtake each other
  doing = {.progress = progress, .changed = steady_clock::now()};
}

// A line for the number of the note, then one for each group: sequence, inside, seconds, name, call, tabs between.
std::string JobBoard::own_note(int64_t number) const {
  std::string note = cat(number, "\n");
  for (const auto& [group, doing] : doing_) {
    const double seconds = duration<double>(steady_clock::now() - doing.changed).count();
    note += cat(doing.progress.sequence, "\t", doing.progress.inside ? 1 : 0, "\t", seconds, "\t", group, "\t",
                doing.progress.call, "\n");
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

MemberReport JobBoard::report(int rank, const std::string& group) {
  MemberReport report{.rank = rank};
  if (!store_->has(key_of(rank))) {
    report.state = MemberReport::State::kNeverJoined;
    return report;
  }
  report.state = MemberReport::State::kNeverMadeGroup;
  for (const std::string& line : split(store_->get(key_of(rank), kSoon), '\n')) {
    const std::vector<std::string> parts = split(line, '\t');
    if (parts.size() != 5 || parts[3] != group) continue;
    report.state = MemberReport::State::kThere;
    report.sequence = std::atoll(parts[0].c_str());
    report.inside = parts[1] == "1";
    report.seconds_ago = std::atof(parts[2].c_str());
    report.call = parts[4];
  }
  return report;
}

int64_t JobBoard::beat(int rank) {
  return store_->has(key_of(rank)) ? std::atoll(store_->get(key_of(rank), kSoon).c_str()) : 0;
}

void JobBoard::abort(const std::string& reason) {
  if (store_->add("board/aborts", 1) == 1) store_->set("board/abort", cat(rank_, "\n", reason));
}

std::optional<JobBoard::Abort> JobBoard::aborted() {
  if (!store_->has("board/abort")) return std::nullopt;
  const std::string note = store_->get("board/abort", kSoon);
  return Abort{.rank = std::atoi(note.c_str()), .reason = note.substr(note.find('\n') + 1)};
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

}  // namespace lockstep::comm
