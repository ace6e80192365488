// The memory that the ranks of a run may take, and whether a plan fits: memory.device_limit, or where it is 0 what there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/launch/identity.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

struct Room {
  enum class Kind {
    kUnbounded,  // nobody says
    kLimit,      // memory.device_limit: bytes of the device of each rank
    kHost,       // of one host: all that its ranks keep there, which on the CPU is everything
    kDevice,     // of one GPU: what its ranks keep on it
  };
  Kind kind = Kind::kUnbounded;
  int64_t bytes = 0;
  std::string source{};     // who says so: "MemAvailable of /proc/meminfo"
  int first_rank = 0;       // of those that share it
  int ranks = 1;
  bool fewer_ranks = false;  // the number of ranks is ours to change: -n
  bool twin = false;         // rank 0 runs the one-rank twin beside its own layout (`lockstep verify`), and nothing is saved
};

// memory.device_limit where one is set; kUnbounded where it is 0.
Room limit_of(const config::RunConfig& config);

// What a plan takes of a room, in bytes.
struct Need {
  int64_t total = 0;   // to be held against Room::bytes: of kLimit the largest peak, else the sum of what follows
  int64_t device = 0;  // predicted peaks, together; of kHost on the CPU alone
  int64_t host = 0;    // offloaded
  int64_t saved = 0;   // copies of states from which checkpoint.asynchronous writes
  int64_t twin = 0;
  int worst = 0;       // the rank with the largest peak
  int64_t peak = 0;    // of it
};
Need need_of(const config::RunConfig& config, const program::Layout& layout, const program::Program& program, const Room& room);
// Of whatever `bytes` says of the layout's ranks.
Need need_of(const config::RunConfig& config, const program::Layout& layout, program::RankMemory& bytes, const Room& room);

bool fits(const Need& need, const Room& room);  // always where the room is kUnbounded

// "2 ranks would need 61.0 GiB of this host together, but 22.3 GiB are left (MemAvailable of /proc/meminfo)"
std::string shortage_line(const program::Layout& layout, const Need& need, const Room& room);

// Whose plan is held against what this host has left.
struct HostRanks {
  launch::Identity first{};  // the first rank here, and with local_size how many there are; 0: only itself is known
  bool fewer_ranks = false;  // fewer ranks are a way out: nobody else has started them
  bool twin = false;         // rank 0 also runs the one-rank twin
};

// memory.device_limit where it is set. Of this host, unless that stands in for it: what it has left, by /proc and the cgroups of
// this process. (What a GPU has left is known to LibTorch alone.)
std::vector<Room> rooms_here(const config::RunConfig& config, const HostRanks& ranks);

// OutOfMemoryError LS4003 with the ways out where the plan does not fit into one of them.
void refuse_what_does_not_fit(const config::RunConfig& config, const program::Layout& layout, const HostRanks& ranks);

}  // namespace lockstep::plan
