// The letters of model.mixers and model.feed_forwards.
#pragma once

#include <string_view>

namespace lockstep::config {

// What mixes the tokens of a layer: a state space, attention to all tokens before, attention within a window, attention to all
// without rotary positions, a state space and attention beside each other, nothing. And what follows it: an MLP, experts, nothing.
inline constexpr std::string_view kMixers = "MAWNH-", kFeedForwards = "DE-";

}  // namespace lockstep::config
