#include <algorithm>

#include "lockstep/plan/evidence/memory_forms.h"

namespace lockstep::plan {
namespace {

// Of a parameter that `ranks` share: itself in 2 bytes, its gradient, and 12 of master and moments (Rajbhandari et al. 2020, section 3). Gradients
// have 2 bytes with fp16, else 4; stacks since 2024 share out theirs in bf16, and of the masters what the bf16 parameters do not say already.
double state_bytes(const MemorySizes& of, int zero, double ranks) {
  if (zero == 1 && !of.unfused) return 4 + 10 / ranks;
  return 2 + (of.fp16 ? 2 : 4) + 12 / (zero == 0 ? 1 : ranks);
}

}  // namespace

// Outputs of a stage are freed once they are sent (Korthikanti et al. 2022, appendix B).
RunMemoryParts replicated_parts(const MemorySizes& of, const MemoryStage& stage, const RunChoice& choice) {
  RunMemoryParts parts;
  parts.states = (stage.dense + stage.first + stage.last) * state_bytes(of, choice.zero, of.ranks) +
                 stage.experts * state_bytes(of, choice.zero, of.expert_ranks);
  parts.activations = of.tokens * stage.kept;
  // Logits in bf16 and fp32, and their probabilities, before the last block runs backward: one of the two is alive.
  const double head = stage.is_last ? 10 * of.tokens * of.vocab / of.tp : 0;
  const double block = of.recompute == config::Recompute::kFull ? of.tokens * stage.working : 0;
  parts.workspace = std::max(head, block);
  return parts;
}

}  // namespace lockstep::plan
