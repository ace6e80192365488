// Memory of a candidate by closed form: what the ranks of each group of a pipeline hold all the time, and on top of it the largest of the
// moments at which most is alive (pipeline_shape.h). The same bytes as program::RankMemory finds by walking the step, within 1 %.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "lockstep/plan/search/layer_pieces.h"
#include "lockstep/plan/search/pipeline_shape.h"

namespace lockstep::plan {

struct QuickMemory {
  double device = 0;  // bytes of the worst rank, allocated at one time
  double host = 0;    // of the rank that offloads most
  int rank = 0;       // the worst one's coordinate on pp
};

// By arch::ParameterGroup: ranks that share out its states.
using GroupShards = std::array<double, arch::kParameterGroups.size()>;

struct MemoryInput {
  const Candidate& candidate;
  const LayerSet& layers;  // with bytes
  const std::vector<UnitSizes>& units;
  const PipelineShape& shape;
  GroupShards shards{};
  double microbatches = 1;
  bool post_validates = false;
};

// What of a job counts whatever the candidate is.
struct MemoryJob {
  double prefetch = 1, prefetch_limit = 0;  // zero 3: layers, bytes
  bool reshard_after_forward = true, reshard_after_microbatch = true;
  bool overlap = true, tied = false, fp32 = false;
};

// Keeps its working space from call to call: nothing is allocated.
class MemoryForm {
 public:
  explicit MemoryForm(const config::RunConfig& config, const arch::ModelConfig& model);
  // Beyond `enough` bytes on a device it does not go on: then it is at least what is said.
  QuickMemory of(const MemoryInput& input, double enough = std::numeric_limits<double>::infinity());

 private:
  struct PlaceStates {                 // bytes of one layer
    double rest = 0;                   // all the time
    double host = 0;
    double gathered = 0;               // of parameters, while it is used
    std::array<double, arch::kParameterGroups.size()> gathered_units{};
    double open = 0;                   // of gradients, until this rank's shard is added
    double staged = 0;                 // of gradients on the wire, with reduce_precision bf16
    double copied = 0;                 // of gradients that REDUCE_PARTIAL sums, the first shard's
  };
  struct ChunkBytes {
    double saved = 0, held = 0, open = 0;
  };

  PlaceStates states_of(const MemoryInput& input, const UnitSizes& unit) const;
  double peak_of(const MemoryInput& input, const RankGroup& group, double enough);
  double moment_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const;
  double forward_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const;
  int next_place(const RankGroup& group, const Moment& moment) const;
  double backward_bytes(const MemoryInput& input, const Moment& moment, const RankGroup& group) const;
  double block_backward(const MemoryInput& input, const Moment& moment, int place, int above, int below) const;
  double weight_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const;
  double open_of(const RankGroup& group, const ChunkLayers& chunk, int place) const;  // of gradients of a layer there
  // Whole gradients stay from the first microbatch to the last.
  static bool stays_open(const MemoryInput& input) { return input.candidate.pp > 1 && input.microbatches > 1; }
  double prefetched(const MemoryInput& input, int place) const;
  double head_gathered() const;
  const LayerBytes& bytes(const MemoryInput& input, int place) const {
    return input.layers.bytes[static_cast<size_t>(place)][static_cast<size_t>(input.candidate.recompute)];
  }
  const PlaceStates& states(int place) const { return states_[static_cast<size_t>(place)]; }

  const MemoryJob job_;
  std::vector<PlaceStates> states_;
  std::vector<ChunkBytes> chunks_;
};

}  // namespace lockstep::plan
