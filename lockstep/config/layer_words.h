// The letters of model.mixers and model.feed_forwards.
#pragma once

#include <string_view>

namespace lockstep::config {

// What mixes the tokens of a layer: a state space, attention to all tokens before, attention within a window, attention to all
// without rotary positions, nothing. And what follows it: an MLP, experts, nothing.
inline constexpr std::string_view kMixers = "MAWN-", kFeedForwards = "DE-";

}  // namespace lockstep::config
