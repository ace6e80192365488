// How the layers of a model lie on the axis pp, and in which order its ranks run them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/config/run_config.h"

namespace lockstep::program {

using config::ScheduleKind;
using config::v_shaped;
std::string schedule_name(ScheduleKind kind);  // "naive", "gpipe", "1f1b", "interleaved", "zb-h1", ..., "file"

// A stage is a stretch of neighbouring layers of arch::layer_table; stage s hands over to stage s + 1. Every pipeline rank
// holds `virtual_stages` of them.
struct Pipeline {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int ranks = 1;           // degree of pp
  int virtual_stages = 1;
  std::vector<int> first_layer{};  // of every stage, and behind it the number of layers; empty = one stage with all
  std::string grid{};              // kFile: the text of the file
  bool grid_in_v = false;          // kFile: the stages lie V-shaped
  // STEP does not wait for the norm of all stages; VALIDATE in the next step takes it back where it was wrong.
  bool post_validation = false;

  int stages() const { return ranks * virtual_stages; }
  int rank_of(int stage) const;  // coordinate on pp
  int stage_of(int layer) const;
  std::vector<int> stages_of(int rank) const;  // ascending
  bool operator==(const Pipeline&) const = default;
};

// First layers of `stages` stretches whose dearest costs least: forward and backward FLOPs, embedding and head counted.
// Every stage gets a block where there are enough of them.
std::vector<int> balanced_stages(const arch::ModelConfig& model, const arch::CostInput& input, int stages);
// The same for so many blocks per stage; the embedding goes with the first stage, the head with the last.
std::vector<int> stages_of_blocks(const std::vector<int>& blocks);

}  // namespace lockstep::program
