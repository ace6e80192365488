#include "lockstep/comm/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::comm {

bool process_ended(pid_t pid) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return errno == ESRCH;
  pollfd watched{.fd = descriptor, .events = POLLIN, .revents = 0};
  const bool ended = poll(&watched, 1, 0) == 1;
  close(descriptor);
  return ended;
}

// proc(5): "PID (NAME) STATE ..."; the name may hold anything.
bool process_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  return text[name_end + 2] == 'T' || text[name_end + 2] == 't';
}

}  // namespace lockstep::comm
