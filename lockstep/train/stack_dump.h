// SIGUSR2: what is this rank doing? Answered while it goes on.
#pragma once

#include <semaphore.h>
#include <signal.h>

#include <functional>
#include <string>
#include <thread>

namespace lockstep::train {

// Listens to SIGUSR2 while it lives, once per process at a time. The handler runs on the interrupted thread (the main
// one, unless that blocks the signal) and only notes the return addresses of its stack; a thread of its own then calls
// `write` with their names, innermost first, one per line. So a rank that waits inside a collective answers too.
// Questions that come while one is answered are answered as one. A stack that ends in code generated at run time (oneDNN's
// kernels) is taken again until it is whole.
class StackDump {
 public:
  using Write = std::function<void(const std::string& stack)>;
  explicit StackDump(Write write);
  ~StackDump();
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

 private:
  void answer();
  Write write_;
  struct sigaction before_ {};
  std::thread thread_;
};

}  // namespace lockstep::train
