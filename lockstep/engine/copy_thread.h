// What is behind a CopyQueue: the thread that makes copies between host and disk, and what is on its way on a GPU's streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/engine/copy_queue.h"

namespace lockstep::engine {

struct CopyState {
  std::string what;
  int64_t bytes = 0;
  std::function<void()> body;
  std::shared_ptr<CopyThread> queue;
  bool done = false;                   // the thread's part; with the queue's mutex held
  std::shared_ptr<DeviceCopy> across;  // null: no side is a device. The thread's until its part is done, then the caller's
};

// Outlives the queue where its thread hangs.
struct CopyThread {
  explicit CopyThread(const CopyQueueOptions& given) : options(given) {}

  void work_off();  // until `closing`
  // Until `holds`; counted as exposed.
  template <typename Holds>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& what, Holds holds) {
    if (!holds()) wait_for(lock, what, holds);
  }
  void wait_for_thread(const CopyState& copy);  // until its part is done
  void wait_for_device(CopyState& copy);
  // With the mutex held: counts a copy that begins, and throws where it may not; lets go of what has ended on a device.
  void note(const std::shared_ptr<CopyState>& copy);
  void forget_done();

  const CopyQueueOptions options;
  std::vector<std::shared_ptr<CopyState>> across;  // the caller's: not seen to have ended
  std::mutex mutex;                                // guards what follows
  std::condition_variable changed;
  std::deque<std::shared_ptr<CopyState>> waiting;
  int64_t bytes = 0;  // of copies that are not done
  bool running = false;
  bool closing = false;
  bool ended = false;
  std::exception_ptr failure;  // of the first that failed
  CopyTotals totals;
  std::thread thread;

 private:
  void wait_for(std::unique_lock<std::mutex>& lock, const std::string& what, const std::function<bool()>& holds);
};

}  // namespace lockstep::engine
