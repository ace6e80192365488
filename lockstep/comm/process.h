// Other processes of this host.
#pragma once

#include <sys/types.h>

namespace lockstep::comm {

// Whether it has ended, reaped by its parent or not. True where there is none of that id.
bool process_ended(pid_t pid);
// By SIGSTOP and its like, or by a debugger. False where that cannot be read.
bool process_stopped(pid_t pid);

}  // namespace lockstep::comm
