// Memory traffic of the pointwise work of one layer for one microbatch on one rank, in bytes: norms, sums, dropout, activations, rotations,
// permutations of rows, softmax over the vocabulary.
#pragma once

#include <array>

#include "lockstep/arch/layer_description.h"

namespace lockstep::plan {

// Forward, of each part of a divided layer (of others all of it is in the first): before rows leave for experts, at the experts, behind.
// Per row of this rank 11 h for each branch; per token (8 g + 8) f of an MLP, g = 2 with a gate, else 1; of experts the same for each row that
// comes to one, times `imbalance`, 12 h for each that goes (it is permuted, and back) and 16 for each score; of a state space what convolution,
// gate and norm read and write. Elements of 2 bytes; of 4 it is twice that.
std::array<double, 3> block_traffic(const arch::ModelConfig& model, const arch::LayerDescription& layer, const arch::CostInput& input, double imbalance);

// What the description itself counts of a phase; and of a block's forward, by parts.
double counted_traffic(const arch::LayerDescription& layer, arch::Phase phase);
std::array<double, 3> counted_block_traffic(const arch::LayerDescription& layer);

// Softmax cross-entropy, forward and backward.
double logit_traffic(const arch::ModelConfig& model, const arch::CostInput& input, double bytes_of_logit);

struct EmbeddingTraffic {
  double forward = 0, backward = 0;
};
EmbeddingTraffic embedding_traffic(const arch::ModelConfig& model, const arch::CostInput& input);

}  // namespace lockstep::plan
