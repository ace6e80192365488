#include "lockstep/train/batches.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "lockstep/nn/upload.h"

namespace lockstep::train {
namespace {

// Values [B, T] of the host, for a GPU in pinned memory, from which it reads while the host goes on; LibTorch keeps that memory until it
// has.
at::Tensor host_rows(int64_t count, int64_t length, at::ScalarType type, at::Device device) {
  return at::empty({count, length}, at::TensorOptions().dtype(type).pinned_memory(!device.is_cpu()));
}

at::Tensor to_device(const at::Tensor& values, at::Device device) { return values.to(at::TensorOptions(device), /*non_blocking=*/true); }

template <typename T>
void set_row(const at::Tensor& rows, int64_t row, const std::vector<T>& values) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(values.size()), rows.size(1), "tokens of a sequence here");
  std::memcpy(rows.data_ptr<T>() + row * rows.size(1), values.data(), values.size() * sizeof(T));
}

// Whole sequences, each as one document.
nn::Microbatch load_whole(const data::Sampler& sampler, const MicrobatchKey& key, at::Device device) {
  const int64_t length = sampler.seq_len();
  const at::Tensor tokens = host_rows(key.count, length, at::kLong, device);   // [B, S]
  const at::Tensor targets = host_rows(key.count, length, at::kLong, device);  // [B, S]: the next token of each
  std::vector<int64_t> sample(static_cast<size_t>(length + 1));
  const auto bytes = static_cast<size_t>(length) * sizeof(int64_t);
  for (int64_t row = 0; row < key.count; ++row) {
    sampler.sample(key.first + row, sample);
    std::memcpy(tokens.data_ptr<int64_t>() + row * length, sample.data(), bytes);
    std::memcpy(targets.data_ptr<int64_t>() + row * length, sample.data() + 1, bytes);
  }
  return {.tokens = to_device(tokens, device),
          .targets = to_device(targets, device),
          .step = key.step,
          .first_sample = key.first_in_batch,
          .valid_targets = nn::count_valid(targets)};
}

// Sequences one after the other, each cut as its documents say.
class PartLoader {
 public:
  PartLoader(const MicrobatchPart& part, int64_t length, int64_t count, at::Device device) : part_(part), device_(device) {
    // Its documents do not change how many tokens a rank has.
    here_ = static_cast<int64_t>(data::split_tokens(length, part.split, std::vector<int32_t>{0}).front().size());
    tokens_ = host_rows(count, here_, at::kLong, device);
    targets_ = host_rows(count, here_, at::kLong, device);
    positions_ = host_rows(count, here_, at::kLong, device);
    places_.length = length;
    places_.rank = part.rank;
    places_.index = at::empty({count, here_}, at::kInt);
    places_.first_seen = at::empty({count, here_}, at::kInt);
    places_.plain = part.split.ranks == 1;
    if (part.split.ranks == 1) return;
    for (int rank = 0; rank < part.split.ranks; ++rank) places_.index_of_ranks.push_back(at::empty({count, here_}, at::kInt));
    places_.first_seen_of_places = at::empty({count, length}, at::kInt);
  }

  void add(const data::Window& whole) {
    const std::vector<std::vector<int32_t>> by_rank = data::split_tokens(places_.length, part_.split, whole.documents());
    for (size_t rank = 0; rank < places_.index_of_ranks.size(); ++rank) set_row(places_.index_of_ranks[rank], row_, by_rank[rank]);
    if (places_.first_seen_of_places.defined()) set_row(places_.first_seen_of_places, row_, whole.first_seen);
    const data::Window here = data::cut(whole, by_rank.at(static_cast<size_t>(part_.rank)));
    set_row(tokens_, row_, here.tokens);
    set_row(targets_, row_, here.targets);
    set_row(positions_, row_, here.positions);
    set_row(places_.index, row_, here.places);
    set_row(places_.first_seen, row_, here.first_seen);
    places_.plain = places_.plain && whole.plain();
    whole_targets_.push_back(static_cast<double>(whole.valid_targets()));
    ++row_;
  }

  nn::Microbatch take(const MicrobatchKey& key) {
    places_.positions = to_device(positions_, device_);
    nn::Microbatch microbatch{.tokens = to_device(tokens_, device_),
                              .targets = to_device(targets_, device_),
                              .step = key.step,
                              .first_sample = key.first_in_batch,
                              .valid_targets = nn::count_valid(targets_),
                              .places = std::make_shared<const nn::TokenPlaces>(std::move(places_))};
    if (part_.sequence_targets) microbatch.sequence_targets = nn::upload(std::span<const double>(whole_targets_), device_);
    return microbatch;
  }

 private:
  const MicrobatchPart& part_;
  const at::Device device_;
  int64_t here_ = 0, row_ = 0;
  at::Tensor tokens_, targets_, positions_;  // [B, T] of the host
  nn::TokenPlaces places_{};
  std::vector<double> whole_targets_{};
};

}  // namespace

data::Sampler open_training_data(const config::RunConfig& config, const program::Layout& layout) {
  return data::Sampler(std::make_shared<const data::TokenFile>(config.data.train),
                       data::training_samples(config, layout.seq_len, layout.global_batch));
}

data::Sampler open_validation_data(const config::RunConfig& config, const program::Layout& layout) {
  return data::Sampler(std::make_shared<const data::TokenFile>(config.data.validation), data::validation_samples(config, layout.seq_len));
}

MicrobatchPart part_of(const program::Layout& layout, int rank) {
  const arch::ContextShard context = layout.context_shard();
  return {.split = {.ranks = context.ranks, .split = context.split, .whole_pieces = layout.whole_pieces()},
          .rank = layout.mesh.coordinates(rank)[mesh::Axis::kCp],
          .places = layout.has_places(),
          .sequence_targets = layout.model.has_experts()};
}

nn::Microbatch load_microbatch(const data::Sampler& sampler, const MicrobatchKey& key, at::Device device, const MicrobatchPart& part) {
  if (!part.places) {
    LOCKSTEP_CHECK(part.split.ranks == 1, "parts of sequences have places");
    nn::Microbatch microbatch = load_whole(sampler, key, device);
    if (part.sequence_targets) microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    return microbatch;
  }
  PartLoader loader(part, sampler.seq_len(), key.count, device);
  for (int64_t row = 0; row < key.count; ++row) loader.add(sampler.window(key.first + row));
  return loader.take(key);
}

std::vector<nn::Microbatch> load_step(const data::Sampler& sampler, const program::Layout& layout, int rank,
                                      const StepPosition& position, at::Device device) {
  const MicrobatchPart part = part_of(layout, rank);
  std::vector<nn::Microbatch> microbatches;
  for (int64_t i = 0; i < layout.num_microbatches(); ++i) {
    const mesh::Range range = program::microbatch_samples(layout, rank, i);
    microbatches.push_back(load_microbatch(sampler,
                                           {.first = position.first_sample + range.begin,
                                            .count = range.end - range.begin,
                                            .step = position.step,
                                            .first_in_batch = range.begin},
                                           device, part));
    LOCKSTEP_CHECK_EQ(microbatches.back().tokens.size(1), layout.tokens_here(), "tokens of a sequence on a rank");
  }
  return microbatches;
}

double step_flops(const arch::ModelFlops& model, const data::Sampler& sampler, const SampleRange& samples) {
  double flops = 0;
  for (int64_t index = samples.first; index < samples.first + samples.count; ++index)
    for (const int64_t length : sampler.document_lengths(index)) flops += static_cast<double>(length) * model.per_token(length);
  return flops;
}

}  // namespace lockstep::train
