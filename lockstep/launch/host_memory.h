// What this host has of memory, and whether it ran short: read from /proc and the memory cgroups (v1 and v2) of this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

struct HostMemory {
  int64_t available = 0;  // bytes that can be taken now: unused ones, and caches of files that give way. Swap is not counted.
  std::string source;     // "MemAvailable of /proc/meminfo", or the cgroup whose limit is nearer and what it has in use
};

// A function of the files under `root`; "/" is this machine. Nothing where they tell neither.
std::optional<HostMemory> host_memory(const std::filesystem::path& root = "/");

// How many processes the kernel has ended so far because memory was short.
struct MemoryKills {
  std::optional<int64_t> cgroup;  // of this process's cgroup: memory.events, with v1 memory.oom_control
  std::optional<int64_t> host;    // of the machine: /proc/vmstat
  std::string cgroup_name{};
};
MemoryKills memory_kills(const std::filesystem::path& root = "/");

// "the kernel ended 1 process of cgroup /job because memory was short (oom_kill 0 -> 1)"; empty where neither count rose.
std::string kills_text(const MemoryKills& before, const MemoryKills& after);

}  // namespace lockstep::launch
