#include "lockstep/plan/evidence/run_memory.h"

#include <algorithm>

#include "lockstep/plan/evidence/memory_forms.h"

namespace lockstep::plan {

RunMemoryParts memory_parts(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice) {
  const MemorySizes of = memory_sizes(run, frame, choice);
  RunMemoryParts most;
  for (const MemoryStage& stage : memory_stages(of, frame, choice)) {
    const bool sharded = choice.zero >= 2;
    const RunMemoryParts parts = sharded ? sharded_parts(of, stage, choice, loss_of(of, frame)) : replicated_parts(of, stage, choice);
    if (parts.sum() > most.sum()) most = parts;
  }
  return most;
}

RunMemory memory_of(const RunMemoryParts& parts, const Stack& stack) {
  const double reserved = parts.sum() * (1 + stack.fragmentation);
  return {.allocated = parts.sum() - parts.cached, .reserved = reserved, .device = reserved + stack.reserved};
}

bool fits(const PublishedRun& run, const RunFrame& frame, const RunMemoryParts& parts) {
  RunMemoryParts here = parts;
  if (frame.cluster.device.name.starts_with("GB") && shards_gradients(run)) here.activations = 0;
  return memory_of(here, frame.stack).device <= frame.cluster.device.memory;
}

}  // namespace lockstep::plan
