// Models of state spaces and of hybrids under `verify`: of each the smallest, in the shapes that a layout asks for; for the tests of this room.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/train/test_context.h"

namespace lockstep::train::testing {

// A sequence of 16 tokens has several chunks, and a window ends within it.
inline Fields chunk(int tokens) { return {cat("model.state_chunk=", tokens)}; }
inline const Fields kWindow = {"model.window=6"};

// Mamba-2 alone; "MWMA": with attention within a window and to all tokens; and with experts in every second layer.
inline Fields mamba(int layers = 2) { return Fields{"model.preset=mamba2-test", cat("model.layers=", layers)} + chunk(4); }
inline Fields hybrid() { return Fields{"model.preset=hybrid-test", "model.layers=4"} + kWindow + chunk(4); }
inline Fields hybrid_experts() {
  return Fields{"model.preset=hybrid-experts-test", "model.layers=4", "model.experts=4", "moe.z_coefficient=0.01"} + kWindow + chunk(4);
}
// A hybrid of other layers, a letter each.
inline Fields hybrid_of(const std::string& mixers, const std::string& feed_forwards = "D") {
  const Fields window = mixers.find('W') == std::string::npos ? Fields{} : kWindow;
  return Fields{"model.preset=hybrid-test", "model.layers=4", cat("model.mixers=", mixers), cat("model.feed_forwards=", feed_forwards)} + window + chunk(4);
}

// Heads of the state space and groups of B and C: groups that ranks of tp share, or that are cut over them.
inline Fields state_heads(int heads, int groups) { return {cat("model.state_heads=", heads), cat("model.state_groups=", groups)}; }
// Of the attention of a hybrid, as tp 3 divides them.
inline Fields attention_of_six() { return {"model.heads=6", "model.kv_heads=3"}; }

}  // namespace lockstep::train::testing
