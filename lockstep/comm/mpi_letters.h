// What ranks of an MPI job write to each other, and what each says of itself in it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// This rank as a member of one group: written by its transport, read by the keeper that answers for it.
class MpiMember {
 public:
  struct Status {
    bool known = false;  // the rank has made the group
    Progress progress;
    int waits_for = -1;      // group rank; -1: nobody
    double seconds_ago = 0;  // when it entered or left its last call
  };
  void publish(const Progress& progress);
  void wait_for(int member) { waits_for_ = member; }
  Status status() const;

 private:
  mutable std::mutex mutex_;
  Progress progress_;
  std::chrono::steady_clock::time_point changed_at_ = std::chrono::steady_clock::now();
  std::atomic<int> waits_for_ = -1;
};

struct MpiLetter {
  enum class Kind : int32_t { kAbort, kClosed, kAsk, kAnswer };
  Kind kind = Kind::kAsk;
  uint64_t group = 0;          // its key; 0: none
  int64_t question = 0;        // of kAsk and kAnswer
  MpiMember::Status status{};  // of kAnswer and kClosed: the last
  std::string text{};          // of kAbort: the reason

  // For ranks whose machines are of one kind; texts are cut to 2 KiB, so that a letter leaves at once.
  std::string bytes() const;
  static std::optional<MpiLetter> read(const std::string& bytes);  // none where it is too short
};

}  // namespace lockstep::comm
