// Predicted memory of a rank by category, found by walking its program.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "lockstep/program/predict/steps.h"
#include "lockstep/program/program.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {

// parameters: the compute copy. optimizer: its slots and, in bf16, the fp32 master weights. activations: alive at the border
// of two actions (kept for backward, outputs, token ids). buffers: workspace inside an action, and communication staging.
// host: what is offloaded, on the host; it is not part of the device's total.
enum class MemoryCategory { kParameters, kGradients, kOptimizer, kActivations, kBuffers, kHost };
inline constexpr size_t kNumMemoryCategories = 6;
std::string_view category_name(MemoryCategory category);

using MemoryArray = std::array<int64_t, kNumMemoryCategories>;
int64_t device_total(const MemoryArray& bytes);  // all but the host's

struct MemoryBytes {
  MemoryArray bytes{};  // the largest value of each category over the step
  int64_t& operator[](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; }
  int64_t operator[](MemoryCategory category) const { return bytes[static_cast<size_t>(category)]; }
  int64_t peak = 0;  // the most of the device at one time; of activations also what lives inside an action, dy beside dx
  int64_t total() const { return device_total(bytes); }
  bool operator==(const MemoryBytes&) const = default;
};

// One action of the program.
struct MemoryPoint {
  MemoryArray within{};  // at the moment of it at which the device holds most: device_total() is that
  MemoryArray after{};   // at the border to the next action
};

struct MemoryTimeline {
  MemoryArray before{};             // the first action
  std::vector<MemoryPoint> points;  // one per action
};
// `left_out` here and below: microbatches that the step has more than the program (steps.h).
MemoryTimeline memory_timeline(const Layout& layout, const Program& program, int rank, int64_t left_out = 0);

// The largest values of the timeline.
MemoryBytes predict_memory(const Layout& layout, const Program& program, int rank, int64_t left_out = 0);

// The same of many ranks: once for those that are alike, on tp too where its parts of layers are of one size. What it is made of
// outlives it; references live as long as this object.
class RankMemory {
 public:
  RankMemory(const Layout& layout, const Program& program);
  // Of a step of which several shorter ones were made (steps.h).
  RankMemory(const Layout& layout, const JudgedSteps& steps);
  const MemoryBytes& of(int rank);
  // Of the ranks [begin, end), by their first ranks: those whose bytes are the same together.
  std::vector<RankClasses::Alike> among(int begin, int end);

 private:
  struct Known {
    MemoryBytes bytes{};  // of all ranks of the class
    // Unless what an action copies of a rank's shard is the most of something: then by shard.
    bool by_shard = false;
    std::map<int, MemoryBytes> shards{};
  };
  Known& known(int rank);
  Known predict(int rank) const;
  template <typename Of>
  std::vector<MemoryBytes> over_steps(const Of& of) const;

  const Layout& layout_;
  const Program& program_;  // of the step, or of the first of steps_
  const JudgedSteps* steps_ = nullptr;
  RankClasses classes_;
  bool equal_parts_;               // of layers, on all ranks of tp
  std::map<size_t, Known> known_;  // by row of classes where they are, else by class
};

}  // namespace lockstep::program
