// Generation: prompts continued token by token with a cache of keys, values and states, several sequences in a step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/infer/sampling.h"
#include "lockstep/model/decode.h"

namespace lockstep::infer {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  SamplingOptions sampling{};
  std::vector<int64_t> stop_tokens{};  // each ends the text and is part of the result
  // What the cache holds of a prompt's beginning is not computed again; of a model with states where that is all that it holds, else
  // the prompt begins anew.
  bool reuse_prefix = false;
};

enum class StopReason { kLength, kStopToken, kCaller };

struct Continuation {
  std::vector<int64_t> ids;  // without the prompt
  StopReason stopped_by = StopReason::kLength;
};

// Seconds by the wall clock.
struct Timing {
  double first_token_seconds = 0;  // from the call to the first prompt's first token
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t prompt_tokens = 0;  // computed, those found in the cache not among them
  int64_t decode_tokens = 0;  // all but the first one of each prompt
  int64_t decode_steps = 0;
};

struct Generated {
  std::vector<Continuation> continuations;  // one per prompt, in order
  Timing timing;
};

// Sees each new token of prompt `index` as it comes; false ends that text.
using OnToken = std::function<bool(size_t index, int64_t id)>;

// Continues prompts over one cache. Every text is what it is alone, to the bit in fp32 on the CPU: prompts are computed
// one by one without padding, and a step's rows do not depend on each other.
class Generator {
 public:
  // At most `slots` sequences in a step, further prompts follow as slots fall free; `capacity` tokens each. What
  // `decoder` refers to outlives this. Errors of check_generates.
  Generator(model::Decoder& decoder, const arch::ModelConfig& model, int64_t slots, int64_t capacity);

  // Each prompt has at least one id. DataError LS1241 for ids outside the vocabulary, or where a prompt + max_new_tokens
  // is more than the capacity.
  Generated generate(std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
                     const OnToken& on_token = {});

 private:
  friend class Round;
  model::Decoder& decoder_;
  arch::ModelConfig model_;
  model::KvCache cache_;
  std::vector<std::vector<int64_t>> held_;  // per slot: the tokens in the cache
};

// ConfigError LS1340 for a model that trains and evaluates but cannot continue a text: the experts choose their tokens (Zhou et al.,
// Expert Choice Routing, 2022).
void check_generates(const arch::ModelConfig& model);

// DataError LS1241 as Generator::generate, for a text of up to `capacity` tokens.
void check_prompt(const arch::ModelConfig& model, const std::vector<int64_t>& prompt, int64_t max_new_tokens,
                  int64_t capacity);

}  // namespace lockstep::infer
