// Small models with what some families have beside the usual, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "support/blocks.h"

namespace lockstep::testing {

// Norms over all heads behind branches (OLMo 2), parts of heads turned and branches beside each other (GPT-NeoX), windows in turn with a theta
// of their own, four norms and scaled embeddings (Gemma 3), layers that are not turned (SmolLM3), a branch a block (Nemotron-H), sinks
// (gpt-oss), multipliers (Falcon-H1, whose state spaces state_space_test.cpp has). `base`: a small model of a family, of whose heads the size is a multiple of 2 and at least 4.
inline std::vector<arch::ModelConfig> further_families(const std::function<arch::ModelConfig(arch::Family)>& base) {
  using arch::Family, arch::Rotation;
  const arch::Branch attention{.kind = "attention", .name = "attention"}, mlp{.kind = "mlp", .name = "mlp"};
  const auto seeing = [&](int64_t window, Rotation rotation = Rotation::kUsual) {
    arch::Branch branch = attention;
    branch.window = window, branch.rotation = rotation;
    return branch;
  };
  arch::ModelConfig olmo2 = base(Family::kOlmo2);
  olmo2.qk_norm = true;
  olmo2.blocks = {{normed(attention, false, true), normed(mlp, false, true)}};
  arch::ModelConfig neox = base(Family::kGptNeox);
  neox.kv_heads = neox.heads, neox.rotary_size = 2, neox.blocks = {{attention, beside(mlp)}};
  arch::ModelConfig gemma = base(Family::kGemma3);
  gemma.tied = true, gemma.qk_norm = true, gemma.rope_local_theta = 100, gemma.attention_scale = 0.3;
  gemma.embedding_scale = std::sqrt(static_cast<double>(gemma.hidden));
  gemma.blocks = {{normed(seeing(3, Rotation::kLocal), true, true), normed(mlp, true, true)},
                  {normed(seeing(0), true, true), normed(mlp, true, true)}};
  arch::ModelConfig smollm = base(Family::kSmollm3);
  smollm.blocks = {{attention, mlp}, {seeing(0, Rotation::kNone), mlp}};
  arch::ModelConfig nemotron = base(Family::kNemotronH);
  nemotron.blocks = {{attention}, {mlp}};
  arch::ModelConfig sinks = base(Family::kLlama);
  sinks.attention_sinks = true, sinks.blocks = {{seeing(4), mlp}, {seeing(0), mlp}};
  arch::ModelConfig falcon = base(Family::kFalconH1);
  falcon.embedding_scale = 1.5;
  falcon.multipliers = {.attention_in = 1.25, .key = 0.6, .attention_out = 0.8, .gate = 0.7, .down = 1.5, .logits = 0.3};
  return {olmo2, neox, gemma, smollm, nemotron, falcon, sinks};
}

}  // namespace lockstep::testing
