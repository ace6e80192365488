// Rows of sequences whose tokens lie on several ranks of cp, in the order of whole sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/token_places.h"

namespace lockstep::parallel {

// parts [n, B T, E], by rank of cp its rows b T + t -> [B S, E]: that row at b S + places.index_of_ranks[r][b, t].
at::Tensor in_order_of_sequences(const at::Tensor& parts, const nn::TokenPlaces& places);

}  // namespace lockstep::parallel
