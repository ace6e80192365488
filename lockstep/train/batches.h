// Microbatches of a rank, from the sampler.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/data/sampler.h"
#include "lockstep/nn/layer.h"
#include "lockstep/program/layout.h"

namespace lockstep::train {

// The sampler of the run's training data, or of its validation data (in order, not shuffled).
data::Sampler open_training_data(const config::RunConfig& config, const program::Layout& layout);
data::Sampler open_validation_data(const config::RunConfig& config, const program::Layout& layout);

// Sequences [first, first + count) of the data as one microbatch on `device`. `step` and `first_in_batch` are the key of
// dropout: they say where the sequences stand in the training run, whatever the layout.
struct MicrobatchKey {
  int64_t first = 0;
  int64_t count = 0;
  int64_t step = 0;
  int64_t first_in_batch = 0;
};
nn::Microbatch load_microbatch(const data::Sampler& sampler, const MicrobatchKey& key, at::Device device);

// Where an optimizer step stands in the run: its number from 0, and the index of its first sample in the data.
struct StepPosition {
  int64_t step = 0;
  int64_t first_sample = 0;
};

// All microbatches of `rank` in that step: sample j of the global batch is sample first_sample + j of the data. With the valid targets
// of each sequence where a layer weighs its own losses by them.
std::vector<nn::Microbatch> load_step(const data::Sampler& sampler, const program::Layout& layout, int rank,
                                      const StepPosition& position, at::Device device);

}  // namespace lockstep::train
