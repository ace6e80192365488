// Generation: a prompt continued token by token with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/infer/sampling.h"
#include "lockstep/model/decode.h"

namespace lockstep::infer {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  SamplingOptions sampling{};
  std::optional<int64_t> stop_token{};  // ends the text; it is part of the result
};

// The continuation of `prompt` (at least one id), without the prompt. `on_token` sees every new id as it comes.
// DataError LS1241 for ids outside the vocabulary, or where prompt + max_new_tokens is more than max_seq_len.
std::vector<int64_t> generate(model::Decoder& decoder, const arch::ModelConfig& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {});

}  // namespace lockstep::infer
