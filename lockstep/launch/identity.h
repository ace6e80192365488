// Who am I: the place of this process in the job.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int region_fd = -1;               // inherited descriptor of the ranks' SharedRegion; -1: none
  std::string source = "one rank";  // who said so: "lockstep -n 2", "one rank"
  bool operator==(const Identity&) const = default;
};

// The flags by which launch_local tells a child its identity: {"--rank", "2", "--world-size", "4", "--region-fd", "5"}.
std::vector<std::string> identity_flags(const Identity& identity);

// Takes those flags out of `arguments` and returns what they say; one rank where there are none. ConfigError LS1060 on
// a flag without its value, a value that is no number, or a rank outside the world.
Identity take_identity(std::vector<std::string>& arguments);

}  // namespace lockstep::launch
