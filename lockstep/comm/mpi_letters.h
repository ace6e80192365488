// What ranks of an MPI job write to each other, and what each says of itself in it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/comm/transport.h"
#include "lockstep/comm/waits.h"

namespace lockstep::comm {

// This rank as a member of one group: written by its transport, read by the keeper that answers for it.
class MpiMember {
 public:
  struct Status {
    bool known = false;  // the rank has made the group
    int64_t sequence = 0;      // of its last call, and whether it is in it
    bool inside = false;
    std::string call{};
    double seconds_ago = 0;    // when it entered or left its last call
    GroupWait kept_by{};       // why it does not come (waits.h); waits_for is -1 where it is kept by nobody
  };
  void publish(const Progress& progress);
  void wait_for(int rank) { waits_for_ = rank; }  // in the world; -1: nobody
  void add_awaiting(int change) { awaiting_ += change; }
  Status status() const;
  GroupWait wait(uint64_t key) const;

 private:
  mutable std::mutex mutex_;
  Progress progress_;
  std::chrono::steady_clock::time_point changed_at_ = std::chrono::steady_clock::now();
  std::atomic<int> waits_for_ = -1;
  std::atomic<int> awaiting_ = 0;  // threads
};

struct MpiLetter {
  enum class Kind : int32_t { kAbort, kClosed, kAsk, kAnswer };
  Kind kind = Kind::kAsk;
  uint64_t group = 0;          // its key; 0: none
  int64_t question = 0;        // of kAsk and kAnswer
  MpiMember::Status status{};  // of kAnswer and kClosed: the last
  std::string text{};          // of kAbort: the reason

  // For ranks whose machines are of one kind; a text is cut to 1 KiB, so that a letter leaves at once.
  std::string bytes() const;
  static std::optional<MpiLetter> read(const std::string& bytes);  // none where it is too short
};

}  // namespace lockstep::comm
