// The letters of model.mixers and model.feed_forwards, and the lists of branches that they say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

// ModelConfig::blocks of a section whose letters are sound (letter_problems()): as many lists as it takes until both texts begin anew
// together, at most one a layer; one where all are equal, none where that is usual_block(). model.norm and model.branches hold for each.
std::vector<BlockSpec> blocks_of(const config::ModelSection& section, int64_t layers);

// ExpertSizes::dense_layers of feed_forwards: every layer that is not E.
std::vector<int> layers_without_experts(const std::string& feed_forwards, int64_t layers);

// A letter each for every list of the model's blocks; nothing where letters do not say what some list has.
struct LayerLetters {
  std::string mixers{}, feed_forwards{};
};
std::optional<LayerLetters> letters_of(const ModelConfig& model);

// Beside the family and the sizes: ", mixers MWMA (window 24)", " of attention beside mlp (same norm)"; empty where all layers are
// usual_block(), or state spaces alone.
std::string blocks_text(const ModelConfig& model);

// Some layer lists a branch of this kind; experts and latent attention are listed as what they stand for, "mlp" and "attention".
bool lists_kind(const ModelConfig& model, std::string_view kind);
// Some layer mixes tokens by attention, or by a kind that a program has added: heads and head_size count.
bool has_attention(const ModelConfig& model);
// Layers with a dense MLP; of none ffn does not count.
int64_t dense_mlps(const ModelConfig& model);

}  // namespace lockstep::arch
