#include "lockstep/train/batches.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace lockstep::train {

data::Sampler open_training_data(const config::RunConfig& config, const program::Layout& layout) {
  return data::Sampler(std::make_shared<const data::TokenFile>(config.data.train),
                       {.seed = static_cast<uint64_t>(config.train.seed),
                        .seq_len = layout.seq_len,
                        .shuffle = config.data.shuffle,
                        .global_batch = layout.global_batch});
}

data::Sampler open_validation_data(const config::RunConfig& config, const program::Layout& layout) {
  return data::Sampler(std::make_shared<const data::TokenFile>(config.data.validation),
                       {.seed = 0, .seq_len = layout.seq_len, .shuffle = false, .global_batch = 1});
}

nn::Microbatch load_microbatch(const data::Sampler& sampler, const MicrobatchKey& key, at::Device device) {
  const int64_t length = sampler.seq_len();
  // For a GPU in pinned memory, from which it reads while the host goes on; LibTorch keeps that memory until it has.
  const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(!device.is_cpu());
  const at::Tensor tokens = at::empty({key.count, length}, options);   // [B, S]
  const at::Tensor targets = at::empty({key.count, length}, options);  // [B, S]: the next token of each
  std::vector<int64_t> sample(static_cast<size_t>(length + 1));
  const auto bytes = static_cast<size_t>(length) * sizeof(int64_t);
  for (int64_t row = 0; row < key.count; ++row) {
    sampler.sample(key.first + row, sample);
    std::memcpy(tokens.data_ptr<int64_t>() + row * length, sample.data(), bytes);
    std::memcpy(targets.data_ptr<int64_t>() + row * length, sample.data() + 1, bytes);
  }
  const auto there = [device](const at::Tensor& values) { return values.to(at::TensorOptions(device), /*non_blocking=*/true); };
  return {.tokens = there(tokens),
          .targets = there(targets),
          .step = key.step,
          .first_sample = key.first_in_batch,
          .valid_targets = nn::count_valid(targets)};
}

std::vector<nn::Microbatch> load_step(const data::Sampler& sampler, const program::Layout& layout, int rank,
                                      const StepPosition& position, at::Device device) {
  std::vector<nn::Microbatch> microbatches;
  for (int64_t i = 0; i < layout.num_microbatches(); ++i) {
    const mesh::Range range = program::microbatch_samples(layout, rank, i);
    microbatches.push_back(load_microbatch(sampler,
                                           {.first = position.first_sample + range.begin,
                                            .count = range.end - range.begin,
                                            .step = position.step,
                                            .first_in_batch = range.begin},
                                           device));
    nn::Microbatch& last = microbatches.back();
    if (layout.model.has_experts()) last.sequence_targets = nn::count_valid_of_sequences(last.targets);
  }
  return microbatches;
}

}  // namespace lockstep::train
