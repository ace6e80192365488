// Which tokens are training sample i: a pure function of (seed, i), whatever the layout, so the position in the data is
// one integer and every rank can compute its own slice of a global batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/data/token_file.h"

namespace lockstep::data {

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t seq_len = 0;  // S
  bool shuffle = true;
  int64_t global_batch = 1;  // samples; an epoch must hold at least this many
};

// Element `index` of a pseudo-random permutation of [0, count), computed on its own: nothing is stored. Another `epoch`
// gives another permutation. A Feistel network over the next power of four, walked along its cycle until it is in
// range: Black, Rogaway: Ciphers with Arbitrary Finite Domains (CT-RSA 2002).
int64_t permuted(uint64_t seed, int64_t epoch, int64_t count, int64_t index);

// The N tokens of a file, packed end to end, as floor((N - 1) / S) samples of S + 1 tokens: sample at place p is tokens
// p * S .. p * S + S, of which the last is only a target. Sample i has place i % samples, permuted anew in each epoch
// i / samples if shuffled. Immutable; any number of threads may call.
class Sampler {
 public:
  // DataError LS1223 with the equation where the file is shorter than one global batch; ConfigError LS1081 for a
  // seq_len or global_batch below 1.
  Sampler(std::shared_ptr<const TokenFile> tokens, const SamplerOptions& options);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  int64_t seq_len() const { return options_.seq_len; }
  int64_t epoch_of(int64_t index) const { return index / samples_per_epoch_; }
  // The first token of sample `index` in the stream.
  int64_t first_token(int64_t index) const;
  // Sample `index` >= 0; tokens_out has S + 1 elements.
  void sample(int64_t index, std::span<int64_t> tokens_out) const;

  const TokenFile& tokens() const { return *tokens_; }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  SamplerOptions options_;
  int64_t samples_per_epoch_ = 0;
};

}  // namespace lockstep::data
