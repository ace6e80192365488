#include "apps/lockstep/runtime/generate_options.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iterator>

namespace lockstep::apps {
namespace {

void require(bool good, const char* what) {
  if (!good) reject("LS1005", what);
}

infer::SamplingOptions sampling_of(const CommandLine& command_line) {
  const infer::SamplingOptions sampling{.repetition_penalty = command_line.number("repetition-penalty", 1),
                                        .temperature = command_line.number("temperature", 0),
                                        .top_k = command_line.integer("top-k", 0),
                                        .top_p = command_line.number("top-p", 1),
                                        .min_p = command_line.number("min-p", 0),
                                        .seed = static_cast<uint64_t>(command_line.integer("seed", 1234))};
  require(sampling.temperature >= 0 && sampling.temperature <= 100, "--temperature: 0 to 100 is needed");
  require(sampling.top_k >= 0, "--top-k: 0 (all) or more is needed");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "--top-p: above 0 and at most 1 is needed");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "--min-p: 0 to 1 is needed");
  require(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 100,
          "--repetition-penalty: above 0 and at most 100 is needed");
  for (const char* flag : {"top-k", "top-p", "min-p"})
    if (command_line.has(flag) && sampling.temperature == 0)
      reject("LS1004", std::string("--") + flag + " is of sampling, and without --temperature nothing is sampled",
             "add --temperature 1, or leave it out");
  return sampling;
}

}  // namespace

infer::GenerateOptions generate_options(const CommandLine& command_line, const ModelSource& source, const data::Tokenizer* tokenizer,
                                        int64_t new_tokens) {
  infer::GenerateOptions options{.sampling = sampling_of(command_line)};
  options.max_new_tokens = command_line.integer("max-new-tokens", new_tokens);
  require(options.max_new_tokens >= 1, "--max-new-tokens: 1 or more is needed");
  if (command_line.has("ignore-eos")) return options;
  options.stop_tokens = source.stop_tokens;
  if (options.stop_tokens.empty() && tokenizer) std::ranges::copy(tokenizer->eos_ids(), std::back_inserter(options.stop_tokens));
  return options;
}

void set_threads(const CommandLine& command_line) {
  if (!command_line.has("threads")) return;
  const int64_t threads = command_line.integer("threads", 1);
  require(threads >= 1 && threads <= 1024, "--threads: 1 to 1024 is needed");
  at::set_num_threads(static_cast<int>(threads));
}

}  // namespace lockstep::apps
