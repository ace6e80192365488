#include "lockstep/comm/mpi_letters.h"

#include <cstring>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestText = 2048;

// The fixed part; the text of the call or the reason follows.
struct Heading {
  MpiLetter::Kind kind{};
  int32_t waits_for = -1;
  uint64_t group = 0;
  int64_t question = 0;
  int64_t sequence = 0;
  double seconds_ago = 0;
  int32_t inside = 0;
  int32_t known = 0;
};

}  // namespace

void MpiMember::publish(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
  changed_at_ = Clock::now();
}

MpiMember::Status MpiMember::status() const {
  const std::lock_guard lock(mutex_);
  return {.known = true,
          .progress = progress_,
          .waits_for = waits_for_,
          .seconds_ago = std::chrono::duration<double>(Clock::now() - changed_at_).count()};
}

std::string MpiLetter::bytes() const {
  const Heading heading{.kind = kind,
                        .waits_for = status.waits_for,
                        .group = group,
                        .question = question,
                        .sequence = status.progress.sequence,
                        .seconds_ago = status.seconds_ago,
                        .inside = status.progress.inside,
                        .known = status.known};
  const std::string& words = kind == Kind::kAbort ? text : status.progress.call;
  return std::string(reinterpret_cast<const char*>(&heading), sizeof heading) + words.substr(0, kLongestText);
}

std::optional<MpiLetter> MpiLetter::read(const std::string& bytes) {
  Heading heading;
  if (bytes.size() < sizeof heading) return std::nullopt;
  std::memcpy(&heading, bytes.data(), sizeof heading);
  const std::string words = bytes.substr(sizeof heading);
  MpiLetter letter{.kind = heading.kind, .group = heading.group, .question = heading.question};
  if (letter.kind == Kind::kAbort) {
    letter.text = words;
    return letter;
  }
  letter.status = {.known = heading.known != 0,
                   .progress = {.sequence = heading.sequence, .call = words, .inside = heading.inside != 0},
                   .waits_for = heading.waits_for,
                   .seconds_ago = heading.seconds_ago};
  return letter;
}

}  // namespace lockstep::comm
