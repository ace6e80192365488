// Small steps for the tests of this room: a layout, and tokens for it.
#pragma once

#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/engine/executor.h"

namespace lockstep::engine::testing {

struct Case {
  std::string preset = "gpt2-test";
  int dp = 2;
  config::DataParallel kind = config::DataParallel::kRing;
  config::Precision precision = config::Precision::kFp32;
  int64_t micro_batch = 2;
  bool overlap = true;
  int64_t seq_len = 16;
  double dropout = 0;
  int tp = 1;
  bool sequence_parallel = true;
  bool row_groups = false;
  int64_t kv_heads = 0;    // 0 = the preset's
  int64_t vocab_size = 0;  // 0 = the preset's
  int zero = 0;
  int dp_replicate = 1;    // of dp, with zero
  config::Precision reduce_precision = config::Precision::kFp32;
  std::vector<arch::Recompute> recompute{};
  program::Offload offload{};
  int pp = 1;
  program::ScheduleKind schedule = program::ScheduleKind::kOneFOneB;
  int virtual_stages = 1;
  int64_t blocks = 0;      // 0 = the preset's
  config::OptimizerKind optimizer = config::OptimizerKind::kAdamW;
  config::Precision ns_precision = config::Precision::kBf16;
  int ep = 1;              // of a preset with experts
  int etp = 1;
  config::MoeSection moe{};
  std::optional<config::Router> router{};  // else the preset's
  std::optional<int64_t> shared_experts{};
  bool overlap_experts = false;
  int ranks() const { return dp * tp * pp; }
};

inline config::OptimizerSection optimizer_of(const Case& c) {
  config::OptimizerSection section;
  section.kind = c.optimizer;
  section.ns_precision = c.ns_precision;
  section.bias_rate = c.moe.bias_rate;
  return section;
}

inline program::Layout layout_for(const Case& c, int64_t global_batch = 24) {
  config::ModelSection section;
  section.preset = c.preset;
  section.dropout = c.dropout;
  if (c.kv_heads > 0) section.kv_heads = c.kv_heads;
  if (c.vocab_size > 0) section.vocab_size = c.vocab_size;
  if (c.blocks > 0) section.layers = c.blocks;
  section.router = c.router;
  section.shared_experts = c.shared_experts;
  program::Layout layout;
  layout.model = arch::resolve_model(section, 512, c.moe);
  layout.moe = c.moe;
  layout.ep = c.ep;
  layout.etp = c.etp;
  layout.overlap_experts = c.overlap_experts;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = c.zero > 0 ? c.dp_replicate : c.dp;
  degrees[mesh::Axis::kDpShard] = c.zero > 0 ? c.dp / c.dp_replicate : 1;
  degrees[mesh::Axis::kTp] = c.tp;
  degrees[mesh::Axis::kPp] = c.pp;
  layout.pipeline = {.kind = c.schedule, .ranks = c.pp, .virtual_stages = c.virtual_stages};
  if (c.pp > 1)
    layout.pipeline.first_layer = program::balanced_stages(
        layout.model, {.batch = c.micro_batch, .seq_len = c.seq_len}, layout.pipeline.stages());
  layout.mesh = mesh::Mesh(degrees);
  layout.sequence_parallel = c.sequence_parallel;
  layout.row_groups = c.row_groups;
  layout.global_batch = global_batch;
  layout.micro_batch = c.micro_batch;
  layout.seq_len = c.seq_len;
  layout.precision = c.precision;
  layout.data_parallel = c.kind;
  layout.bucket_bytes = 32 << 10;
  layout.overlap = c.overlap;
  layout.zero = c.zero;
  layout.reduce_precision = c.reduce_precision;
  layout.recompute = c.recompute;
  layout.offload = c.offload;
  layout.optimizer = optimizer_of(c);
  return layout;
}

// Tokens that are a pure function of the place in the global batch; every seventh target does not count.
inline std::vector<nn::Microbatch> microbatches(const program::Layout& layout, int rank, int64_t step) {
  std::vector<nn::Microbatch> all;
  for (int64_t i = 0; i < layout.num_microbatches(); ++i) {
    const mesh::Range range = program::microbatch_samples(layout, rank, i);
    nn::Microbatch microbatch{.tokens = at::empty({range.end - range.begin, layout.seq_len}, at::kLong),
                              .targets = at::empty({range.end - range.begin, layout.seq_len}, at::kLong),
                              .step = step,
                              .first_sample = range.begin};
    for (int64_t row = 0; row < range.end - range.begin; ++row)
      for (int64_t column = 0; column < layout.seq_len; ++column) {
        const int64_t place = (step * 1000 + range.begin + row) * layout.seq_len + column;
        const int64_t offset = row * layout.seq_len + column;
        microbatch.tokens.data_ptr<int64_t>()[offset] = place * place % layout.model.vocab_size;
        microbatch.targets.data_ptr<int64_t>()[offset] =
            place % 7 == 3 ? -100 : (place * 31 + 5) % layout.model.vocab_size;
      }
    microbatch.valid_targets = nn::count_valid(microbatch.targets);
    if (layout.model.has_experts()) microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    all.push_back(std::move(microbatch));
  }
  return all;
}

// The same on a device.
inline std::vector<nn::Microbatch> microbatches(const program::Layout& layout, int rank, int64_t step, at::Device device) {
  std::vector<nn::Microbatch> all = microbatches(layout, rank, step);
  for (nn::Microbatch& microbatch : all) {
    microbatch.tokens = microbatch.tokens.to(device);
    microbatch.targets = microbatch.targets.to(device);
    if (microbatch.sequence_targets.defined()) microbatch.sequence_targets = microbatch.sequence_targets.to(device);
  }
  return all;
}

}  // namespace lockstep::engine::testing
