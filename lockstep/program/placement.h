// Where the states that a rank offloads lie: host memory takes what memory.host_limit allows, the disk the rest (Rajbhandari
// et al. 2021, ZeRO-Infinity). A static choice, made before the first step and the same in every step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/config/suggestion.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {

// Of a rank, alike on all of them; bytes of its shards.
struct HostPlan {
  std::vector<int> disk_units;  // ascending: ids of the units whose optimizer state lies on disk
  int64_t gradients = 0;        // fp32 sums of the step, of all units
  int64_t states = 0;           // slots of the optimizer, fp32 values and, in bf16 with parameters offloaded, the compute copy: of units not on disk
  int64_t staging = 0;          // two buffers, each as large as the largest unit on disk
  int64_t activations = 0;      // inputs of layers, of one microbatch
  int64_t disk = 0;             // states of the units on disk
  int64_t host() const { return gradients + states + staging + activations; }
  bool on_disk(int unit) const;
};

// Elements of a unit and of a rank's part of it, and bytes of that part.
struct UnitSize {
  int64_t whole = 0;
  int64_t part = 0;
  int64_t updated = 0;    // what an update reads and writes: fp32 values and slots (arch::update_bytes)
  int64_t offloaded = 0;  // what host or disk keeps beside the gradient: the same, and with parameters offloaded in bf16 their copy
};
// By unit.
std::map<int, UnitSize> unit_sizes(const Layout& layout, const std::vector<arch::ParamSpec>& table);

// The small units go to disk first, since two of the largest one there are staged on the host; as few as host() <=
// host_limit takes. RefusedConfig LS4010 with the equation where no choice is small enough, or the layout has no disk.
HostPlan host_plan(const Layout& layout, int rank);

// The same, of the rank that offloads most; nothing where every rank has a plan. A further way out is to share the states among
// more ranks, which the layout alone cannot judge.
inline constexpr const char* kHostLimitCode = "LS4010";
std::optional<config::LayoutProblem> host_limit_problem(const Layout& layout);

}  // namespace lockstep::program
