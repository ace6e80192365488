// Heads for tokens among neighbours, and a ring across them (Fang and Zhao, USP, 2024). Of one set of neighbours: heads for tokens alone
// (Jacobs et al., DeepSpeed Ulysses, 2023).
#pragma once

#include <memory>
#include <string>

#include "lockstep/nn/context_attention.h"
#include "lockstep/parallel/context/group.h"

namespace lockstep::parallel {

struct TwoDCalls {
  program::CallId heads, ring;
};
// Over the group's inner and outer ranks.
std::unique_ptr<nn::ContextAttention> make_2d_attention(ContextGroup& group, const TwoDCalls& calls);
// Over all ranks.
std::unique_ptr<nn::ContextAttention> make_all_to_all_attention(ContextGroup& group, const program::CallId& calls);

}  // namespace lockstep::parallel
