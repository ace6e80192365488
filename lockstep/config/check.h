// Values judged together: what no single field can say about itself.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/config/load.h"

namespace lockstep::config {

struct LayoutProblem;  // suggestion.h

// tp x cp x pp: ranks that have one copy of the model and one batch of sequences together.
int64_t ranks_of_copy(const ParallelSection& parallel);
// Data-parallel ranks of a world: parallel.dp, or where it is 0 as many as the ranks allow beside the other axes.
// As dp_replicate * dp_shard it may be more than an int holds: layout_problems() refuses that.
int64_t data_parallel_size(const RunConfig& config, int world_size);
// The ranks that the configuration asks for, at most INT_MAX; where parallel.dp is 0 those of one model replica, or of as many as
// ep x etp lies over.
int ranks_wanted(const RunConfig& config);

// How the data-parallel ranks are grouped: `replicate` groups of `shard` ranks each, which share out states.
struct DataDegrees {
  int replicate = 1;
  int shard = 1;
};
DataDegrees data_degrees(const RunConfig& config, int world_size);
// Of the ranks of a stage that hold the same experts, those among which their states are shared out: as dp_replicate groups, or
// as many as divide their number. 1 without zero. check_layout has found ep and etp sound.
int64_t expert_shards(const RunConfig& config, int world_size);
// 0 to 3; parallel.fsdp counts as 3.
int zero_stage(const RunConfig& config);

// Reads the grid of schedule = "file:PATH" where a pipeline uses it, the file is there and it has not been read: once, where a
// job starts. Without it the relations below say that there is no such file. DataError LS1203 where it cannot be read.
void read_schedule(RunConfig& config);

// What virtual_stages, layers_per_stage and post_validation come to. check_layout has found them sound.
struct PipelineChoice {
  int virtual_stages = 1;     // 0 = as the grid of the file has it
  std::vector<int> blocks{};  // of every stage; empty = balanced
  bool post_validation = false;
};
PipelineChoice pipeline_choice(const RunConfig& config);

// The optimizer of some parameter.
bool uses_muon(const RunConfig& config);

// What trace.steps says: the first and the last step, counted from 1; {0, -1}: none.
struct TracedSteps {
  int64_t first = 0;
  int64_t last = -1;
  bool contains(int64_t step) const { return step >= first && step <= last; }
};
TracedSteps traced_steps(const RunConfig& config);

// Microbatches come in groups of so many: with schedule interleaved of pp.
int64_t microbatch_group(const RunConfig& config);
// Forward passes of one rank per optimizer step: global_batch / (dp * micro_batch).
int64_t microbatches(const RunConfig& config, int world_size);
// Sequences of which train.global_batch is a multiple: dp * micro_batch * microbatch_group.
int64_t batch_unit(const RunConfig& config, int world_size);

// Every relation that does not hold between the configuration and a world of `world_size` ranks; empty = all well. Where the model is
// known its sizes are in config.model; heads, state_heads and experts are 0 where no layer has any. The ways
// out are values that suit the relation itself: keep_what_holds() leaves those that suit all others too. Of depth 0 where there
// are more ranks than any mesh has, else kRelationsDepth.
inline constexpr int kRelationsDepth = 1;
std::vector<LayoutProblem> layout_problems(const RunConfig& config, int world_size);

inline constexpr const char* kLayoutCode = "LS1101";
// "this layout does not fit the launch (2 problems, nothing was started)".
std::string layout_heading(size_t problems);
// Throws RefusedConfig LS1101 with all of them, one line each with the place the value came from; nothing where there are none.
void refuse_layout(const LoadedConfig& loaded, const std::vector<LayoutProblem>& problems);
// The relations alone: of a model named by a preset or a directory no size is known here.
void check_layout(const LoadedConfig& loaded, int world_size);
void check_layout(const RunConfig& config, int world_size);

}  // namespace lockstep::config
