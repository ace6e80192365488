// Microbatches of a rank, from the sampler.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/token_split.h"
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
// Which tokens of its sequences a microbatch has, and what it says of them.
struct MicrobatchPart {
  data::TokenSplit split{};       // over cp; one rank: all tokens
  int rank = 0;                   // of cp
  bool places = false;            // with nn::Microbatch::places; else whole sequences that are one document each
  bool sequence_targets = false;  // of whole sequences, for layers that weigh their own losses by them
};
MicrobatchPart part_of(const program::Layout& layout, int rank);
// Tokens [B, T], T = arch::ContextShard::tokens_here of each sequence, with targets and places cut like them.
nn::Microbatch load_microbatch(const data::Sampler& sampler, const MicrobatchKey& key, at::Device device, const MicrobatchPart& part = {});

// Where an optimizer step stands in the run: its number from 0, and the index of its first sample in the data.
struct StepPosition {
  int64_t step = 0;
  int64_t first_sample = 0;
};

// All microbatches of `rank` in that step: sample j of the global batch is sample first_sample + j of the data. Ranks of cp have the same
// samples, and of each other tokens.
std::vector<nn::Microbatch> load_step(const data::Sampler& sampler, const program::Layout& layout, int rank,
                                      const StepPosition& position, at::Device device);

// Model FLOPs of these sequences of the data: tokens see those of their documents alone where the sampler says so.
struct SampleRange {
  int64_t first = 0, count = 0;
};
double step_flops(const arch::ModelFlops& model, const data::Sampler& sampler, const SampleRange& samples);

}  // namespace lockstep::train
