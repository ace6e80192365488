#include "lockstep/plan/evidence/memory_stages.h"

#include <algorithm>
#include <numeric>

namespace lockstep::plan {
namespace {

using config::ScheduleKind;

// The first `forwards` ones, which take chunks in turns of `stages` microbatches.
std::vector<double> in_turns(int forwards, int stages, int chunks) {
  std::vector<double> counts(static_cast<size_t>(chunks));
  for (int done = 0; done < forwards; done += stages) counts[static_cast<size_t>(done / stages % chunks)] += std::min(stages, forwards - done);
  return counts;
}

// The chunk of a rank that is the `stage`-th of all: in a V the second half comes back.
int stage_of(ScheduleKind schedule, int rank, int chunk, int ranks) {
  return config::v_shaped(schedule) && chunk == 1 ? 2 * ranks - 1 - rank : chunk * ranks + rank;
}

void add_blocks(const MemorySizes& of, int begin, int count, double in_flight, MemoryStage& stage) {
  for (int layer = begin; layer < begin + count; ++layer) {
    const bool dense = !of.model.has_experts() || of.model.experts.is_dense(layer);
    const BlockParameters block = block_parameters(of, dense);
    stage.dense += block.dense;
    stage.experts += block.experts;
    stage.largest = std::max(stage.largest, block.sum());
    stage.working = std::max(stage.working, working_bytes(of, dense));
    stage.kept += in_flight * kept_bytes(of, dense);
  }
}

}  // namespace

std::vector<double> microbatches_in_flight(ScheduleKind schedule, int stage, int stages, int chunks, double microbatches) {
  const auto most = [&](double count) { return std::min(microbatches, count); };
  switch (schedule) {
    case ScheduleKind::kGPipe: return {microbatches};
    case ScheduleKind::kZbH1: return {most(stages)};
    case ScheduleKind::kZbH2: return {most(2 * stages - 1)};
    case ScheduleKind::kZbV: return {most(stages), most(stages)};
    case ScheduleKind::kDualPipeV: return {most(stages + 1), most(stages + 1)};
    default: break;
  }
  if (chunks == 1) return {most(stages - stage)};
  const double warm_up = 2.0 * (stages - stage - 1) + (chunks - 1.0) * stages + 1;
  return in_turns(static_cast<int>(std::min(microbatches * chunks, warm_up)), stages, chunks);
}

std::vector<MemoryStage> memory_stages(const MemorySizes& of, const RunFrame& frame, const RunChoice& choice) {
  const int ranks = static_cast<int>(of.pp), chunks = ranks > 1 ? choice.virtual_stages : 1, layers = static_cast<int>(of.model.layers);
  const std::vector<int> blocks = blocks_of_stages(layers, ranks * chunks);
  const double words = of.vocab * of.hidden / of.tp;
  std::vector<MemoryStage> stages(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    MemoryStage& stage = stages[static_cast<size_t>(rank)];
    stage.chunks = chunks;
    stage.is_first = rank == 0;
    stage.is_last = config::v_shaped(frame.schedule) ? rank == 0 : rank == ranks - 1;
    if (stage.is_first) stage.first = words;
    if (stage.is_last && !(of.model.tied && stage.is_first)) stage.last = words;
    const std::vector<double> in_flight = microbatches_in_flight(frame.schedule, rank, ranks, chunks, of.microbatches);
    double held = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int at = stage_of(frame.schedule, rank, chunk, ranks), count = blocks[static_cast<size_t>(at)];
      const double many = in_flight[std::min(static_cast<size_t>(chunk), in_flight.size() - 1)];
      add_blocks(of, std::accumulate(blocks.begin(), blocks.begin() + at, 0), count, many, stage);
      stage.in_flight += many;
      held += count;
      if (chunk == chunks - 1 && held > 0) stage.late_share = count / held;
    }
  }
  return stages;
}

}  // namespace lockstep::plan
