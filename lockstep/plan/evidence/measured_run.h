// What was measured in published runs: for comparison alone, after all is predicted.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::plan {

// Which number a source calls its peak. kAllocated: bytes of tensors (torch.cuda.max_memory_allocated). kReserved: what the allocator took for
// them, which logs print most. kDevice: all of the device, with context and communicators (nvidia-smi).
enum class MemoryKind { kAllocated, kReserved, kDevice };
std::string_view memory_kind_name(MemoryKind kind);

struct MeasuredRun {
  struct Memory {
    MemoryKind kind = MemoryKind::kReserved;
    double bytes = 0;
  };
  std::string id{};
  std::optional<double> seconds{};  // of a step; derived.step_time_s, else measured.step_time_s
  std::optional<Memory> memory{};
};

// In the order of the rows. Memory is under a key of `measured` that has "mem" in it and ends in _gb, _gib, _mb, _mib or _bytes; "alloc" in it
// says kAllocated, "device" or "smi" kDevice, else it is what the allocator reserved. Errors as parse_published_runs.
std::vector<MeasuredRun> parse_measured_runs(std::string_view text, std::string_view origin);
std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& path);

}  // namespace lockstep::plan
