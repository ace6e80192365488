// One run in a run directory at a time. Whoever trains there holds a lock, a small file in RUN/lock/ that says host and process
// and whose counter goes up every few seconds. It works on a file system that hosts share: no lock of the system is used.
//
// The locks of a directory are numbered; the largest number counts, and the next is made with O_EXCL, so that of two who want to
// take over only one does. A lock is free once it says so, or its process is gone (where it is of this host), or its counter
// stands still for `patience` (where it is of another one).
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/train/lock_holder.h"

namespace lockstep::train {

struct RunLockOptions {
  LockHolder self = LockHolder::self();
  std::chrono::milliseconds beat{2000};       // between two beats of the counter
  std::chrono::milliseconds patience{30000};  // how long the counter of another host must stand still
  std::function<void(std::chrono::milliseconds)> pause{};  // seam for tests: waits between two looks; empty = sleeps
  std::function<void()> before_take{};                     // seam for tests: between the look and the take
};

class RunLock {
 public:
  explicit RunLock(std::filesystem::path run_directory, RunLockOptions options = {});
  // Gives the lock back where it is held.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // A look at the lock: true where it is held from now on, false where another host's is still watched; then to be called
  // again, and it has waited a while. CheckpointError LS1315 where somebody trains there, with host and process;
  // EnvironmentError LS3101 where the lock cannot be written.
  bool try_take();
  // Whose lock is being watched, and for how long at most; empty where none is.
  std::string watched() const;
  // Whose lock was taken over, and why; empty where it was free.
  const std::string& took_over() const { return took_over_; }
  // CheckpointError LS1316 where another has taken over since: this process was silent for too long. check() knows what the
  // last beat has seen; look() reads the folder, for what must not happen twice. Thread-safe; nothing where it is not held.
  void check() const;
  void look() const;

 private:
  struct Beating;
  struct Watched;
  bool take(int64_t number, const std::string& from);
  bool pause();
  [[noreturn]] void lost() const;

  std::filesystem::path folder_;
  RunLockOptions options_;
  std::string took_over_;
  std::unique_ptr<Watched> watched_;
  std::shared_ptr<Beating> beating_;
  std::thread thread_;
};

}  // namespace lockstep::train
