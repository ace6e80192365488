// From a run configuration to the layout of its step, tokenizer included: what every verb starts with.
#pragma once

#include "lockstep/config/load.h"
#include "lockstep/program/defaults.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {

// Reads data.tokenizer for the size of its vocabulary where one is named. Everything is judged before anything starts:
// RefusedConfig LS1101 (batch and ranks, with the place each value came from), LS1120 (tokenizer with more tokens than
// model.vocab_size), LS1121 (seq_len beyond max_seq_len), with ways out each of which gives a layout or leaves fewer
// problems; ConfigError LS1110..1119 (model sizes, model.from); DataError for the tokenizer file. What nobody set is set in
// `loaded` (defaults.h): the layout and the configuration say the same.
Layout layout_of(config::LoadedConfig& loaded, int world_size);

// Opens the token files to see that they exist, are whole, long enough for a global batch and hold only ids of the
// model's vocabulary: DataError LS122x. ConfigError LS1082 where data.train is not given.
void check_data(const config::RunConfig& config, const Layout& layout);

}  // namespace lockstep::program
