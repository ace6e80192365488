// Tokens of several ranks in the order of their sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/token_places.h"

namespace lockstep::parallel {

// The ranks of cp lie in sets of `inner` neighbours; each has the tokens of its own set.
struct SharedTokens {
  // Of the tokens of the set, ascending, inner * T of each sequence; ranks are the sets. Without positions.
  nn::TokenPlaces places;
  // [B, inner * T] int64 of the host: where each is among the rows [inner, B, T] that the members hold.
  at::Tensor rows;
};
SharedTokens share_tokens(const nn::TokenPlaces& places, int inner);

}  // namespace lockstep::parallel
