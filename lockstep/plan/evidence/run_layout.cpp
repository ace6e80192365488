#include "lockstep/plan/evidence/run_layout.h"

#include <algorithm>
#include <array>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::Recompute;
using config::ScheduleKind;

constexpr int kMostMicroBatch = 32, kMostVirtual = 12;  // that are tried

// PyTorch's own pipelines, which have defaults for what a row leaves open: as many microbatches as ranks, two stages a rank where they interleave
// (torchtitan, December 2024).
bool is_torch_pipeline(const PublishedRun& run, const RunFrame& frame) {
  return shards_gradients(run) && frame.config.parallel.pp > 1 && frame.stack.kernels == Kernels::kFlash;
}

std::vector<int> micro_batches(const PublishedRun& run, const RunFrame& frame) {
  const int64_t of_rank = std::max<int64_t>(1, frame.config.train.global_batch / frame.config.parallel.dp);
  if (run.layout.micro_batch) return {static_cast<int>(std::clamp<int64_t>(*run.layout.micro_batch, 1, of_rank))};
  if (run.layout.microbatches && *run.layout.microbatches > 0) return {static_cast<int>(std::max<int64_t>(1, of_rank / *run.layout.microbatches))};
  if (is_torch_pipeline(run, frame) && of_rank % frame.config.parallel.pp == 0) return {static_cast<int>(of_rank / frame.config.parallel.pp)};
  std::vector<int> sizes;
  for (int size = 1; size <= kMostMicroBatch; size *= 2)
    if (of_rank % size == 0) sizes.push_back(size);
  return sizes;
}

std::vector<int> virtual_stages(const PublishedRun& run, const RunFrame& frame) {
  const int pp = frame.config.parallel.pp;
  if (pp == 1) return {1};
  if (config::v_shaped(frame.schedule)) return {2};
  if (has_pipeline_engine(run, frame.stack.kernels)) return {1};
  if (run.layout.vpp) return {static_cast<int>(std::clamp<int64_t>(*run.layout.vpp, 1, frame.model.layers + 2))};
  const bool says_interleaved = has_word(run.layout.schedule.value_or(""), "nterleaved");
  if (says_interleaved && is_torch_pipeline(run, frame)) return {2};
  std::vector<int> stages;
  for (int each = says_interleaved ? 2 : 1; each <= kMostVirtual; ++each) {
    const int64_t layers = frame.model.layers, all = int64_t{pp} * each;
    if (each == 1 || (all <= layers + 2 && (layers % all == 0 || (layers + 2) % all == 0))) stages.push_back(each);
  }
  if (stages.empty()) stages.push_back(2);
  return stages;
}

std::vector<int> zero_stages(const PublishedRun& run, const RunFrame& frame) {
  const config::ParallelSection& parallel = frame.config.parallel;
  if (parallel.dp * parallel.cp == 1) return {0};
  if (run.layout.zero) return {static_cast<int>(std::clamp<int64_t>(*run.layout.zero, 0, 3))};
  if (run.layout.precision == "fp16") return {0};
  return parallel.pp > 1 ? std::vector{1, 0} : std::vector{1, 0, 3};
}

config::RunConfig with_choice(const RunFrame& frame, const RunChoice& choice, int64_t microbatches) {
  config::RunConfig config = frame.config;
  config::ParallelSection& parallel = config.parallel;
  config.train.micro_batch = choice.micro_batch;
  config.train.global_batch = microbatches * choice.micro_batch * parallel.dp;
  config.memory.recompute.list = {choice.recompute};
  parallel.zero = choice.zero;
  // DeepSpeed where it shares them out, and later stacks, reduce gradients as they are computed, in 2 bytes; the sums are fp32.
  if (choice.zero >= 2 || (choice.zero == 1 && frame.stack.kernels != Kernels::kUnfused)) parallel.reduce_precision = config.train.precision;
  if (parallel.dp == 1 && parallel.cp == 1) parallel.reduce_precision = config::Precision::kFp32;
  if (parallel.pp == 1) return config;
  parallel.schedule.kind = choice.virtual_stages > 1 && !config::v_shaped(frame.schedule) ? ScheduleKind::kInterleaved : frame.schedule;
  parallel.virtual_stages = choice.virtual_stages;
  const int64_t stages = int64_t{parallel.pp} * choice.virtual_stages;
  if (stages <= frame.model.layers + 2)
    parallel.layers_per_stage.list = blocks_of_stages(static_cast<int>(frame.model.layers), static_cast<int>(stages));
  return config;
}

}  // namespace

std::vector<RunChoice> choices_of(const PublishedRun& run, const RunFrame& frame) {
  const std::optional<Recompute> fixed = recompute_in_words(run.layout.recompute);
  const std::vector<Recompute> recomputes = fixed ? std::vector{*fixed} : std::vector{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::vector<RunChoice> choices;
  for (const int zero : zero_stages(run, frame))
    for (const int micro_batch : micro_batches(run, frame))
      for (const int stages : virtual_stages(run, frame))
        for (const Recompute recompute : recomputes)
          choices.push_back({.micro_batch = micro_batch, .virtual_stages = stages, .zero = zero, .recompute = recompute});
  return choices;
}

RunPieces pieces_of(const RunFrame& frame, const RunChoice& choice) {
  const config::ParallelSection& parallel = frame.config.parallel;
  const bool interleaved = parallel.pp > 1 && choice.virtual_stages > 1 && !config::v_shaped(frame.schedule);
  const int64_t unit = interleaved ? parallel.pp : 1;  // microbatches come in groups of so many
  const double of_group = static_cast<double>(parallel.dp) * choice.micro_batch * static_cast<double>(unit);
  const double groups = static_cast<double>(frame.config.train.global_batch) / of_group;
  const auto layout = [&](int64_t count) { return program::make_layout(with_choice(frame, choice, count * unit), frame.model, frame.gpus); };
  const int64_t below = std::max<int64_t>(1, static_cast<int64_t>(groups));
  const double more = groups - static_cast<double>(below);
  RunPieces result;
  result.pieces.push_back({.layout = layout(below), .weight = 1 - more});
  if (more == 0) return result;
  result.pieces.push_back({.layout = layout(below + 1), .weight = more});
  result.notes.push_back(cat(number_text(groups * static_cast<double>(unit)), " microbatches of a rank: on the line through ",
                             below * unit, " and ", (below + 1) * unit));
  return result;
}

std::vector<int> blocks_of_stages(int layers, int stages) {
  const int most = (layers + stages - 1) / stages;
  std::vector<int> blocks(static_cast<size_t>(stages), most);
  // Of the last and the first in turns; then of those behind them, which keep one where there are enough.
  const int least = stages <= layers + 2 ? 1 : 0;
  int missing = most * stages - layers;
  for (size_t depth = 0; missing > 0; depth = depth + 1 < blocks.size() / 2 ? depth + 1 : 0)
    for (const size_t stage : {blocks.size() - 1 - depth, depth})
      if (missing > 0 && blocks[stage] > (depth == 0 ? 0 : least)) {
        --blocks[stage];
        --missing;
      }
  return blocks;
}

std::vector<std::pair<std::string, std::string>> assumed_fields(const PublishedRun& run, const RunChoice& choice) {
  constexpr std::array<const char*, 3> kRecomputes = {"none", "selective", "full"};
  std::vector<std::pair<std::string, std::string>> fields;
  if (!run.layout.micro_batch) fields.emplace_back("micro_batch", cat(choice.micro_batch));
  if (!run.layout.vpp) fields.emplace_back("vpp", cat(choice.virtual_stages));
  if (!run.layout.zero) fields.emplace_back("zero_stage", cat(choice.zero));
  if (!recompute_in_words(run.layout.recompute)) fields.emplace_back("recompute", kRecomputes.at(static_cast<size_t>(choice.recompute)));
  return fields;
}

}  // namespace lockstep::plan
