// The model of a published run as a ModelConfig, and its FLOPs by the closed form of the literature.
#pragma once

#include <string>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/plan/evidence/published_run.h"

namespace lockstep::plan {

// FLOPs of training one token: 6 x the multiplications of its products, of experts those that it goes through, the head among them; recomputing
// is not counted (Chowdhery et al. 2022, PaLM, appendix B). Layers that predict further tokens are not in it, as in the files.
struct RunFlops {
  double causal = 0;     // attention sees the half of a sequence
  double noncausal = 0;  // all of it
};
// ConfigError LS1146 where the row does not print a size that this needs.
RunFlops flops_of_token(const RunModel& model);

struct MappedModel {
  arch::ModelConfig model{};
  std::vector<std::string> notes{};  // where it is not what the row says
};
// Without a gate and grouped heads as gpt2 (LayerNorm, biases, learned positions), all else as llama's block with what the row says: experts,
// latent attention, windows in turn. Embeddings are tied or not as the number of parameters says it, else in gpt2 alone. ConfigError LS1146
// names the sizes that are missing or contradict each other.
MappedModel model_of(const PublishedRun& run);

}  // namespace lockstep::plan
