// The memory that the ranks of a run may take, whether a plan fits, and what to change where it does not: memory.device_limit, or
// where it is 0 what there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/load.h"
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
  bool of_each_rank() const { return kind == Kind::kLimit || kind == Kind::kUnbounded; }  // else ranks share it
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
// Of whatever `bytes` says of the layout's ranks.
Need need_of(const config::RunConfig& config, const program::Layout& layout, program::RankMemory& bytes, const Room& room);

inline bool fits(const Need& need, const Room& room) { return room.kind == Room::Kind::kUnbounded || need.total <= room.bytes; }

// What to change where memory is short: another layout of the same job, predicted.
struct WayOut {
  std::string change{};  // "memory.recompute = \"full\""
  std::vector<config::Override> set{};  // the same as flags
  int ranks = 0;         // -n, where the number of ranks changes; else 0
  std::string note{};    // the last of `change`, where the numbers are others: " (other rounding)"
  int64_t peak = 0;      // predicted, of the rank; with other stages or ranks of the rank that then needs most; of a host or
                         // a GPU what its ranks take together
  int64_t saved = 0;     // of that
  double slower = 0;     // predicted time of a step: 0.04 = 4 % more (usual_machine.h)
  bool fits = false;     // in the room; with memory.device_limit on every stage of a pipeline
  bool limits_experts = false;  // sets moe.imbalance_limit: `slower` leaves out the rounds of steps that pass it
  bool same_numbers() const { return note.empty(); }
};

struct Shortage {
  int rank = 0;    // whose peak is to be lowered
  Room room{};
  size_t most = 3;  // ways to be named
};

// The cheapest changes of the configuration that are valid for its model and ranks and lower what is needed: recomputation, a
// higher zero stage, smaller microbatches, a limit of the rows that come to experts (the largest round one that fits; 1 where none
// does; at most 2 in a room of kUnbounded), offload from a GPU, none on the CPU, tensor parallelism, more stages, fewer ranks of the
// host, saving without a copy, bf16, shorter sequences. Those that fit come first, among them those that keep the
// numbers, among those the fastest; of those that do not fit, the ones that save most. Where no change fits alone, the
// first one that does is made of up to three, which is not tried for the longest programs. Empty where nothing helps.
std::vector<WayOut> ways_out(const config::RunConfig& config, const program::Layout& layout, const Shortage& shortage);

// "2 ranks would need 61.0 GiB of this host together, but 22.3 GiB are left (MemAvailable of /proc/meminfo)"
std::string shortage_line(const program::Layout& layout, const Need& need, const Room& room);
// The table of an out-of-memory message: bytes by category, predicted and (where there are any) measured, and the ways out.
std::string shortage_text(const config::RunConfig& config, const program::Layout& layout, const Shortage& shortage,
                          const std::optional<program::MemoryBytes>& measured);
// The table of ways out alone.
std::string ways_text(const std::vector<WayOut>& ways, const Room& room);

// OutOfMemoryError LS4003 where the plan does not fit the room, before anything starts; with the table of the rank that
// needs most.
void check_room(const config::RunConfig& config, const program::Layout& layout, const Room& room);

// memory.device_limit where it is set. Of this host, unless that stands in for it: what it has left, by /proc and the cgroups of
// this process; `here` says whose ranks share it. (What a GPU has left is known to LibTorch alone.)
std::vector<Room> rooms_here(const config::RunConfig& config, Room here);

// check_room() of each of them.
void refuse_what_does_not_fit(const config::RunConfig& config, const program::Layout& layout, const Room& here);

}  // namespace lockstep::plan
