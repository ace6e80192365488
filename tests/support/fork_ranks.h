// N ranks as forked processes over shared memory: they can be killed and stopped one by one.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::testing {

// Runs `body` as rank 0 to n - 1; a rank exits with what it returns, 70 where it throws. To be called where this
// process has one thread. The caller waits for them: code_of().
inline std::vector<pid_t> fork_ranks(int n, const launch::SharedRegion& region, const std::function<int(comm::World&)>& body,
                                     const comm::SharedMemoryOptions& options = {}) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int code = 70;
    try {
      const auto mine =
          std::make_shared<const launch::SharedRegion>(launch::SharedRegion::from_descriptor(dup(region.descriptor())));
      comm::SharedMemoryWorld world(mine, rank, n, options);
      code = body(world);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    _exit(code);
  }
  return children;
}

// Waits for the process: what it exits with, or less than 0 where a signal ended it.
inline int code_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// What each of n ranks' `body` throws, by rank; "" where nothing. A rank that has thrown lies still until all but
// `victim` have, which is killed then: nobody learns from another that it has given up.
inline std::vector<std::string> said_by_forked_ranks(int n, const std::function<void(comm::World&)>& body,
                                                     const comm::SharedMemoryOptions& options, int victim) {
  const launch::SharedRegion region = launch::SharedRegion::memfd(launch::region_bytes(n));
  int says[2], ends[2];
  if (pipe(says) != 0 || pipe(ends) != 0) std::abort();
  const auto children = fork_ranks(
      n, region,
      [&](comm::World& world) {
        close(ends[1]);
        std::string text(1, static_cast<char>(world.rank()));
        // What unwinds closes groups: the text leaves, and all wait, before that.
        try {
          body(world);
        } catch (const std::exception& error) {
          text += error.what();
        }
        text.resize(4096);
        if (write(says[1], text.data(), text.size()) < 0) std::abort();
        char byte;
        return static_cast<int>(read(ends[0], &byte, 1));
      },
      options);
  std::vector<std::string> said(static_cast<size_t>(n));
  for (int rank = 0; rank < n - 1; ++rank) {
    std::string text(4096, '\0');
    for (size_t count = 0; count < text.size();)
      count += static_cast<size_t>(read(says[0], text.data() + count, text.size() - count));
    said[static_cast<size_t>(text[0])] = text.c_str() + 1;
  }
  for (const int descriptor : {says[0], says[1], ends[0], ends[1]}) close(descriptor);
  kill(children[static_cast<size_t>(victim)], SIGKILL);
  for (const pid_t child : children) code_of(child);
  return said;
}

}  // namespace lockstep::testing
