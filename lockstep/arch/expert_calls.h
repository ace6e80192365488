// What travels for a branch of experts: between the ranks that share them, between the ranks of tp and cp that route, and how much of it.
#pragma once

#include "lockstep/arch/expert_branch.h"

namespace lockstep::arch {

// Ids of a LayerBuilder; kNoCall where nothing travels.
struct ExpertCalls {
  struct Pair {
    int forward = LayerBuilder::kNoCall, backward = LayerBuilder::kNoCall;
  };
  int scores = LayerBuilder::kNoCall;   // of all rows here, over tp
  int whole_scores = LayerBuilder::kNoCall;  // and of whole sequences, over cp
  int counts = LayerBuilder::kNoCall;   // of rows for each expert
  int tokens = LayerBuilder::kNoCall;   // a sender of tokens: which one each assignment is of, and its weight
  int weights = LayerBuilder::kNoCall;  // and back the gradient of that
  Pair dispatch{}, combine{};           // to the experts and back; over nodes, where a dispatcher forwards inside them
  Pair dispatch_in_node{}, combine_in_node{};
  Pair rows{};                          // over tp, where each rank routes a part of the rows that it has
};

ExpertCalls make_expert_calls(LayerBuilder& b, const Branch& branch, const ExpertRows& rows);

}  // namespace lockstep::arch
