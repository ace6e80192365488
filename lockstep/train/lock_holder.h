// A process as others can recognise it, on this host and from another one; see run_lock.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::train {

// Who holds a lock. Two processes can be compared by their ids where `boot` and `pid_space` are the same.
struct LockHolder {
  std::string host{};
  int64_t pid = 0;
  int64_t started = 0;      // of the process, in clock ticks since boot: pids are used again
  std::string boot{};       // id of this boot of the host's kernel
  std::string pid_space{};  // the process namespace: containers of one host have their own
  bool operator==(const LockHolder&) const = default;

  static LockHolder self();
  static LockHolder of(int64_t pid);  // a process of this namespace; started = 0 where it has ended

  bool can_be_seen_from(const LockHolder& other) const { return boot == other.boot && pid_space == other.pid_space; }
  std::string words() const;  // "process 4711 on n2"
};

// What a lock's file says.
struct LockContent {
  LockHolder holder{};
  int64_t beats = 0;
  bool released = false;

  std::string text() const;  // of the same length always
  // Nothing where it is not whole, as between its making and its first writing.
  static std::optional<LockContent> parse(const std::string& text);
};

}  // namespace lockstep::train
