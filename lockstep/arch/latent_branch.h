// Latent attention as a kind of branch (DeepSeek-AI 2024, DeepSeek-V2): its steps.
#pragma once

#include <memory>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {

std::unique_ptr<WholeBranch> new_latent_branch(LayerBuilder& b, const Branch& branch);

}  // namespace lockstep::arch
