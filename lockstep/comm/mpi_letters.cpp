#include "lockstep/comm/mpi_letters.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestText = 1024;

// The fixed part; the reason follows, or the texts of two calls: the one that it is in and the one that keeps it.
struct Heading {
  MpiLetter::Kind kind{};
  int32_t waits_for = -1;
  uint64_t group = 0;
  uint64_t kept_in = 0;  // a group
  int64_t question = 0;
  int64_t sequence = 0;
  double seconds_ago = 0;
  int32_t inside = 0;
  int32_t known = 0;
  int64_t first_text = 0;  // bytes
};

}  // namespace

void MpiMember::publish(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
  changed_at_ = Clock::now();
}

MpiMember::Status MpiMember::status() const {
  const std::lock_guard lock(mutex_);
  Status status;
  status.known = true;
  status.sequence = progress_.sequence;
  status.inside = progress_.inside;
  status.call = progress_.call.text();
  status.seconds_ago = std::chrono::duration<double>(Clock::now() - changed_at_).count();
  return status;
}

GroupWait MpiMember::wait(uint64_t key) const {
  const std::lock_guard lock(mutex_);
  return {.group = key, .waits_for = waits_for_, .awaited = awaiting_ > 0, .call = progress_.call.text()};
}

std::string MpiLetter::bytes() const {
  const std::string first = (kind == Kind::kAbort ? text : status.call).substr(0, kLongestText);
  const Heading heading{.kind = kind,
                        .waits_for = status.kept_by.waits_for,
                        .group = group,
                        .kept_in = status.kept_by.group,
                        .question = question,
                        .sequence = status.sequence,
                        .seconds_ago = status.seconds_ago,
                        .inside = status.inside,
                        .known = status.known,
                        .first_text = static_cast<int64_t>(first.size())};
  return std::string(reinterpret_cast<const char*>(&heading), sizeof heading) + first +
         status.kept_by.call.substr(0, kLongestText);
}

std::optional<MpiLetter> MpiLetter::read(const std::string& bytes) {
  Heading heading;
  if (bytes.size() < sizeof heading) return std::nullopt;
  std::memcpy(&heading, bytes.data(), sizeof heading);
  const std::string words = bytes.substr(sizeof heading);
  const size_t first = std::min(words.size(), static_cast<size_t>(heading.first_text));
  MpiLetter letter{.kind = heading.kind, .group = heading.group, .question = heading.question};
  if (letter.kind == Kind::kAbort) {
    letter.text = words.substr(0, first);
    return letter;
  }
  MpiMember::Status& status = letter.status;
  status.known = heading.known != 0;
  status.sequence = heading.sequence;
  status.call = words.substr(0, first);
  status.inside = heading.inside != 0;
  status.seconds_ago = heading.seconds_ago;
  status.kept_by.group = heading.kept_in;
  status.kept_by.waits_for = heading.waits_for;
  status.kept_by.call = words.substr(first);
  return letter;
}

}  // namespace lockstep::comm
