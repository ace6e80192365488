// How the layers of a model lie on the ranks of a pipeline and how many microbatches each rank keeps when, for the first tier: what a
// schedule's lists and the balanced cut say, reduced to the few moments at which memory can be most.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/plan/search/layer_pieces.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

// The cut of program::balanced_stages, in a time that grows with stages x layers: the dearest stage of the layers in front does not get
// cheaper with more of them, and the stage at hand does, so the best border is where the two meet. `costs` by layer.
std::vector<int> balanced_cut(const std::vector<double>& costs, int stages);

// A stage of a rank.
struct ChunkLayers {
  std::vector<int> layers{};  // by place
  int top = -1, second = -1, bottom = -1;  // places of its last block, of the one before it and of the first; -1: there is none
  bool embedding = false, head = false;
  bool operator==(const ChunkLayers&) const = default;
};

// In front of the backward pass of a chunk, or behind its forward pass: microbatches by chunk.
struct Moment {
  program::Work work = program::Work::kForward;
  int chunk = 0;
  std::vector<int> saved{};   // F has run and I has not, that of this moment included
  std::vector<int> held{};    // I has run and W has not, likewise
  int next = -1;              // chunk of the next stretch that uses parameters; -1: W, or none, is next ...
  bool next_forward = false;  // ... and whether that is an F
  int messages = 0;           // that a neighbour sent for the next stretch, or that are on their way to one
  int layers_saved = 0, layers_held = 0, layers_opened = 0;  // of all chunks, times their layers, about: blocks weigh more
  std::vector<char> opened{};  // a backward pass is through, and not the last: gradients of all of its parameters are there
};

// Ranks of equal chunks.
struct RankGroup {
  int first = 0;  // coordinate on pp
  int ranks = 0;
  std::vector<ChunkLayers> chunks{};
  std::vector<int> layers{};  // by place, of all chunks
  std::vector<char> before{}, behind{};  // by chunk: another rank hands over to it; it hands over to another
  bool embedding = false, head = false;
  std::vector<Moment> moments{};  // of each kind of work and chunk those that may be the worst
};

struct PipelineShape {
  std::vector<RankGroup> groups{};  // the first has rank 0
};

struct ShapeInput {
  config::ScheduleKind schedule = config::ScheduleKind::kOneFOneB;
  int ranks = 1;
  int virtual_stages = 1;
  int64_t microbatches = 1;
  bool shards_parameters = false;  // they come and go: of its moments it counts what is next
  bool receives_early = true;  // what a stretch needs arrives while the one before it runs
};
// Microbatches beyond which no rank keeps more at one time.
int64_t microbatches_that_matter(const ShapeInput& input);
PipelineShape pipeline_shape(const std::vector<int>& first_layer, const Places& places, const ShapeInput& input);

}  // namespace lockstep::plan
