// The shared state of a Work and the communicator that completes it.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

struct Work::State : CallWait {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;
  std::shared_ptr<NativeWork> native;  // set: the call is the backend's, and the rest is not used
  Transport* transport = nullptr;      // there until the call is done; null: nobody can wait for it
  int waiting = 0;                     // threads

  void finish(std::exception_ptr problem) {
    const std::lock_guard lock(mutex);
    done = true;
    failure = std::move(problem);
    if (waiting > 0 && !failure) transport->add_awaiting(-waiting);
    changed.notify_all();
  }
};

}  // namespace lockstep::comm
