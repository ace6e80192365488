// What the flags of `lockstep generate` and `lockstep chat` say about what is generated.
#pragma once

#include "apps/lockstep/command_line.h"
#include "apps/lockstep/runtime/model_source.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/infer/generate.h"

namespace lockstep::apps {

// `new_tokens`: where --max-new-tokens is not given. A text ends at the tokens that the model names, else at those of `tokenizer`,
// where there is one; with --ignore-eos at none. ConfigError LS1005 for values out of range.
infer::GenerateOptions generate_options(const CommandLine& command_line, const ModelSource& source, const data::Tokenizer* tokenizer,
                                        int64_t new_tokens);

// --threads, where it is given. ConfigError LS1005.
void set_threads(const CommandLine& command_line);

}  // namespace lockstep::apps
