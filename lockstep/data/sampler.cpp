#include "lockstep/data/sampler.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/check.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

constexpr uint64_t kRounds = 6;

}  // namespace

int64_t permuted(uint64_t seed, int64_t epoch, int64_t count, int64_t index) {
  LOCKSTEP_CHECK(index >= 0 && index < count, "element ", index, " of ", count);
  const RandomStream random(seed, cat("data/epoch ", epoch));
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(count - 1)));
  const int half_bits = std::max(1, (bits + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (random.bits(round << 32 | right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

Sampler::Sampler(std::shared_ptr<const TokenFile> tokens, const SamplerOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  if (options.seq_len < 1 || options.global_batch < 1)
    throw ConfigError({.code = "LS1081",
                       .what = cat("seq_len ", options.seq_len, " and global_batch ", options.global_batch,
                                   " must both be at least 1")});
  const int64_t count = tokens_->num_tokens();
  samples_per_epoch_ = count == 0 ? 0 : (count - 1) / options.seq_len;
  if (samples_per_epoch_ < options.global_batch)
    throw DataError({.code = "LS1223",
                     .what = cat(tokens_->prefix().string(), ": the corpus is shorter than one batch: (", count,
                                 " tokens - 1) / ", options.seq_len, " seq_len = ", samples_per_epoch_,
                                 " samples, but a batch needs ", options.global_batch),
                     .way_out = "use more text, a smaller train.global_batch or a shorter train.seq_len"});
}

int64_t Sampler::first_token(int64_t index) const {
  LOCKSTEP_CHECK(index >= 0, "sample ", index);
  const int64_t place = index % samples_per_epoch_;
  if (!options_.shuffle) return place * options_.seq_len;
  return permuted(options_.seed, epoch_of(index), samples_per_epoch_, place) * options_.seq_len;
}

void Sampler::sample(int64_t index, std::span<int64_t> tokens_out) const {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(tokens_out.size()), options_.seq_len + 1);
  tokens_->read(first_token(index), tokens_out);
}

}  // namespace lockstep::data
