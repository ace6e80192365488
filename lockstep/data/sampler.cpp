#include "lockstep/data/sampler.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

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

namespace {

[[noreturn]] void refuse_short(const TokenFile& tokens, const SamplerOptions& options, const Packing* packing, int64_t samples) {
  const std::string equation =
      packing ? cat(packing->figures().documents, " documents of ", tokens.num_tokens(), " tokens, packed by ", options.seq_len,
                    " seq_len = ", samples, " samples")
              : cat("(", tokens.num_tokens(), " tokens - 1) / ", options.seq_len, " seq_len = ", samples, " samples");
  throw DataError({.code = "LS1223",
                   .what = cat(tokens.prefix().string(), ": the corpus is shorter than one batch: ", equation, ", but a batch needs ",
                               options.global_batch),
                   .way_out = "use more text, a smaller train.global_batch or a shorter train.seq_len"});
}

DocumentRules rules_of(const config::DataSection& data) {
  return {.mask = data.masks_documents(), .reset_positions = data.resets_positions()};
}

}  // namespace

SamplerOptions training_samples(const config::RunConfig& config, int64_t seq_len, int64_t global_batch) {
  return {.seed = static_cast<uint64_t>(config.train.seed),
          .seq_len = seq_len,
          .shuffle = config.data.shuffle,
          .global_batch = global_batch,
          .pack = config.data.pack,
          .rules = rules_of(config.data)};
}

SamplerOptions validation_samples(const config::RunConfig& config, int64_t seq_len) {
  return {.seed = 0, .seq_len = seq_len, .shuffle = false, .global_batch = 1, .pack = config.data.pack, .rules = rules_of(config.data)};
}

Sampler::Sampler(std::shared_ptr<const TokenFile> tokens, const SamplerOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  if (options.seq_len < 1 || options.global_batch < 1)
    throw ConfigError({.code = "LS1081",
                       .what = cat("seq_len ", options.seq_len, " and global_batch ", options.global_batch,
                                   " must both be at least 1")});
  if (options.pack == config::Pack::kDocuments) packing_ = std::make_shared<const Packing>(tokens_->index(), options.seq_len);
  else if (options.rules.mask || options.rules.reset_positions) starts_ = document_starts(tokens_->index());
  samples_per_epoch_ = samples_of_file();
  if (samples_per_epoch_ < options.global_batch) refuse_short(*tokens_, options, packing_.get(), samples_per_epoch_);
}

int64_t Sampler::samples_of_file() const {
  if (packing_) return packing_->num_sequences();
  const int64_t count = tokens_->num_tokens();
  return count == 0 ? 0 : (count - 1) / options_.seq_len;
}

// Of the sample among those of an epoch, in the order of the file.
int64_t Sampler::place(int64_t index) const {
  LOCKSTEP_CHECK(index >= 0, "sample ", index);
  const int64_t place = index % samples_per_epoch_;
  return options_.shuffle ? permuted(options_.seed, epoch_of(index), samples_per_epoch_, place) : place;
}

int64_t Sampler::first_token(int64_t index) const {
  return packing_ ? packing_->pieces(place(index)).front().first : place(index) * options_.seq_len;
}

void Sampler::sample(int64_t index, std::span<int64_t> tokens_out) const {
  LOCKSTEP_CHECK(!packing_, "a sequence of documents has no token behind its last");
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(tokens_out.size()), options_.seq_len + 1);
  tokens_->read(first_token(index), tokens_out);
}

Window Sampler::window(int64_t index) const { return packing_ ? window_of_documents(index) : window_of_stream(index); }

// Where documents begin in a sample of the stream, the first at 0: what it has of a document counts as one. The last may begin at S.
std::vector<int32_t> Sampler::stream_begins(int64_t index) const {
  std::vector<int32_t> begins = {0};
  const int64_t first = first_token(index);
  for (auto start = std::ranges::upper_bound(starts_, first); start != starts_.end() && *start <= first + options_.seq_len; ++start)
    begins.push_back(static_cast<int32_t>(*start - first));
  return begins;
}

std::vector<int64_t> Sampler::document_lengths(int64_t index) const {
  std::vector<int64_t> lengths;
  if (packing_) {
    for (const PackedPiece& piece : packing_->pieces(place(index))) lengths.push_back(piece.length);
  } else {
    std::vector<int32_t> bounds = stream_begins(index);
    if (bounds.back() < options_.seq_len) bounds.push_back(static_cast<int32_t>(options_.seq_len));
    for (size_t i = 1; i < bounds.size(); ++i) lengths.push_back(bounds[i] - bounds[i - 1]);
  }
  if (options_.rules.mask) return lengths;
  return {std::accumulate(lengths.begin(), lengths.end(), int64_t{0})};
}

Window Sampler::window_of_stream(int64_t index) const {
  std::vector<int64_t> tokens(static_cast<size_t>(options_.seq_len) + 1);
  sample(index, tokens);
  Window window = empty_window(options_.seq_len);
  std::copy(tokens.begin(), tokens.end() - 1, window.tokens.begin());
  std::copy(tokens.begin() + 1, tokens.end(), window.targets.begin());
  std::vector<int32_t> begins = stream_begins(index);
  if (options_.rules.mask)
    for (size_t i = 1; i < begins.size(); ++i) window.targets[static_cast<size_t>(begins[i]) - 1] = kNoTarget;
  if (begins.back() == options_.seq_len) begins.pop_back();  // it has none of the window's tokens
  set_documents(window, options_.seq_len, begins, options_.rules);
  return window;
}

Window Sampler::window_of_documents(int64_t index) const {
  Window window = empty_window(options_.seq_len);
  std::vector<int32_t> begins;
  std::vector<int64_t> tokens;
  size_t begin = 0;
  for (const PackedPiece& piece : packing_->pieces(place(index))) {
    const auto length = static_cast<size_t>(piece.length);
    tokens.resize(length + (piece.continues ? 1 : 0));
    tokens_->read(piece.first, tokens);
    std::copy_n(tokens.begin(), length, window.tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    std::copy(tokens.begin() + 1, tokens.end(), window.targets.begin() + static_cast<std::ptrdiff_t>(begin));
    begins.push_back(static_cast<int32_t>(begin));
    begin += length;
  }
  set_documents(window, static_cast<int64_t>(begin), begins, options_.rules);
  return window;
}

}  // namespace lockstep::data
