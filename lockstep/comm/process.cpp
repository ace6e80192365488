#include "lockstep/comm/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::comm {

bool process_ended(pid_t pid) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return errno == ESRCH;
  pollfd watched{.fd = descriptor, .events = POLLIN, .revents = 0};
  const bool ended = poll(&watched, 1, 0) == 1;
  close(descriptor);
  return ended;
}

}  // namespace lockstep::comm
