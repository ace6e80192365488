// Which tokens are training sample i: a pure function of (seed, i), whatever the layout, so the position in the data is
// one integer and every rank can compute its own slice of a global batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/data/packing.h"
#include "lockstep/data/token_file.h"
#include "lockstep/data/window.h"

namespace lockstep::data {

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t seq_len = 0;  // S
  bool shuffle = true;
  int64_t global_batch = 1;  // samples; an epoch must hold at least this many
  config::Pack pack = config::Pack::kStream;
  DocumentRules rules{};
};
// Of a run's training data, and of its validation data: in order, of any size.
SamplerOptions training_samples(const config::RunConfig& config, int64_t seq_len, int64_t global_batch);
SamplerOptions validation_samples(const config::RunConfig& config, int64_t seq_len);

// Element `index` of a pseudo-random permutation of [0, count), computed on its own: nothing is stored. Another `epoch`
// gives another permutation. A Feistel network over the next power of four, walked along its cycle until it is in
// range: Black, Rogaway: Ciphers with Arbitrary Finite Domains (CT-RSA 2002).
int64_t permuted(uint64_t seed, int64_t epoch, int64_t count, int64_t index);

// The N tokens of a file as samples of S tokens and their targets. pack stream: the tokens end to end, as floor((N - 1) / S) samples;
// sample at place p is tokens p * S .. p * S + S, of which the last is only a target. pack documents: the sequences of a Packing, which
// takes a pass over the lengths when the sampler is made. Sample i has place i % samples, permuted anew in each epoch i / samples if
// shuffled. Immutable; any number of threads may call.
class Sampler {
 public:
  // DataError LS1223 with the equation where the file is shorter than one global batch; ConfigError LS1081 for a
  // seq_len or global_batch below 1.
  Sampler(std::shared_ptr<const TokenFile> tokens, const SamplerOptions& options);

  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  int64_t seq_len() const { return options_.seq_len; }
  const SamplerOptions& options() const { return options_; }
  int64_t epoch_of(int64_t index) const { return index / samples_per_epoch_; }
  // The first token of sample `index` in the stream; with pack documents, of its first piece.
  int64_t first_token(int64_t index) const;
  // Sample `index` >= 0 of the stream, as if it were one document; tokens_out has S + 1 elements. Not with pack documents.
  void sample(int64_t index, std::span<int64_t> tokens_out) const;
  // Of the documents in sample `index` that do not see each other, how many tokens each has, fill left out; without masks of all as one.
  std::vector<int64_t> document_lengths(int64_t index) const;
  // Sample `index` >= 0 with what its tokens know of documents. Without masks the targets are those of sample().
  Window window(int64_t index) const;

  const TokenFile& tokens() const { return *tokens_; }
  const Packing* packing() const { return packing_.get(); }  // null with pack stream

 private:
  int64_t place(int64_t index) const;
  int64_t samples_of_file() const;
  std::vector<int32_t> stream_begins(int64_t index) const;
  Window window_of_stream(int64_t index) const;
  Window window_of_documents(int64_t index) const;

  std::shared_ptr<const TokenFile> tokens_;
  SamplerOptions options_;
  std::shared_ptr<const Packing> packing_{};
  std::vector<int64_t> starts_{};  // of documents, where the stream is to know them: 8 bytes each
  int64_t samples_per_epoch_ = 0;
};

}  // namespace lockstep::data
