// All keys and values on every rank (Grattafiori et al., Llama 3, 2024, section 3.3.2).
#pragma once

#include <memory>

#include "lockstep/nn/context_attention.h"
#include "lockstep/parallel/context/group.h"

namespace lockstep::parallel {

std::unique_ptr<nn::ContextAttention> make_all_gather_attention(ContextGroup& group, const program::CallId& calls);

}  // namespace lockstep::parallel
