// From the row of a published run to layouts of this program: what the row says stays fixed, what it leaves open is listed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/plan/evidence/run_cluster.h"
#include "lockstep/plan/evidence/run_model.h"
#include "lockstep/plan/evidence/run_stack.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/layout.h"

namespace lockstep::plan {

// What rows leave open.
struct RunChoice {
  int micro_batch = 1;
  int virtual_stages = 1;
  int zero = 0;
  config::Recompute recompute = config::Recompute::kNone;
  bool operator==(const RunChoice&) const = default;
};

// All of a run that is the same whatever is chosen.
struct RunFrame {
  arch::ModelConfig model{};
  RunFlops flops{};  // of a token
  Cluster cluster{};
  Stack stack{};
  EstimateOptions options{};
  config::RunConfig config{};  // without micro-batch, virtual stages, zero and recompute
  config::ScheduleKind schedule = config::ScheduleKind::kOneFOneB;  // of a pipeline with one stage a rank
  int gpus = 1;
  double tokens = 0;  // of a step
  std::vector<std::string> notes{};  // where the layout is not what the row says
};
// ConfigError LS1140 or LS1146: what of the row cannot be said as a layout, or is not printed.
RunFrame frame_of(const PublishedRun& run, const RunSource& source);

// Of a row's word; nothing where there is none, or none that is known: then it is open.
std::optional<config::Recompute> recompute_in_words(const std::optional<std::string>& word);

// Every value that is legal: one where the row says all. Micro-batches are powers of two that divide the batch of a rank, at most 32; virtual
// stages cut the blocks evenly, or but for one at each end; both are the software's defaults under PyTorch's own pipelines. Zero is 1 or 0 under a
// pipeline and none of fp16's, else also 3. Of recompute, choices that are alike in all else follow each other in ascending order.
std::vector<RunChoice> choices_of(const PublishedRun& run, const RunFrame& frame);

// A layout, and how often the run has it: the microbatches of a batch that does not divide lie between those of two that do.
struct RunPiece {
  program::Layout layout{};
  double weight = 1;
};
// One, or two whose weights add up to 1. ConfigError LS1101 where the layout is refused.
struct RunPieces {
  std::vector<RunPiece> pieces{};
  std::vector<std::string> notes{};
};
RunPieces pieces_of(const RunFrame& frame, const RunChoice& choice);

// Blocks of every stage where each has as many: of `layers` that do not divide, the last and the first stage have fewer, as they have head and
// embedding beside them.
std::vector<int> blocks_of_stages(int layers, int stages);

// The fields that a row leaves open, and their values in a choice.
std::vector<std::pair<std::string, std::string>> assumed_fields(const PublishedRun& run, const RunChoice& choice);

}  // namespace lockstep::plan
