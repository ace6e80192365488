// Predicted memory of a rank by category, found by walking its program.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// parameters: the compute copy. optimizer: moments and, in bf16, the fp32 master weights. activations: alive at the border
// of two actions (kept for backward, outputs, token ids). buffers: workspace inside an action, and communication staging.
// host: what is offloaded, on the host; it is not part of the device's total.
enum class MemoryCategory { kParameters, kGradients, kOptimizer, kActivations, kBuffers, kHost };
inline constexpr size_t kNumMemoryCategories = 6;
std::string_view category_name(MemoryCategory category);

struct MemoryBytes {
  std::array<int64_t, kNumMemoryCategories> bytes{};  // the largest value of each category over the step
  int64_t& operator[](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; }
  int64_t operator[](MemoryCategory category) const { return bytes[static_cast<size_t>(category)]; }
  int64_t peak = 0;       // the most of the device at one time: total() bounds it
  int64_t total() const;  // of the device
};

MemoryBytes predict_memory(const Layout& layout, const Program& program, int rank);

}  // namespace lockstep::program
