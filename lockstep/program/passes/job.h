// From a run configuration to the layout of its step, tokenizer included: what every verb starts with.
#pragma once

#include "lockstep/arch/model_config.h"
#include "lockstep/config/load.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {

// Values that follow from the model and the number of ranks, where nobody set them; every verb takes them from here. Of what
// stands at its default:
//   train.seq_len       256, or model.max_seq_len where that is less
//   train.micro_batch   the largest up to 8 of which the batch of a rank is a multiple
//   train.global_batch  32, or the next multiple of dp * micro_batch (with schedule interleaved * pp)
// A value that was set stays.
void settle_defaults(config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size);

// Reads data.tokenizer for the size of its vocabulary where one is named. Everything is judged before anything starts:
// RefusedConfig LS1110..1116 (model sizes, model.from), LS1101 (batch and ranks, with the place each value came from), LS1120
// (tokenizer with more tokens than model.vocab_size), LS1121 (seq_len beyond max_seq_len), LS4010 (memory.host_limit), with ways
// out each of which gives a layout, leaves fewer problems or lets the judging come further; DataError for the files of tokenizer,
// model and schedule. What nobody set is set in `loaded`, and the grid of a schedule is read into it: the layout and the
// configuration say the same.
Layout layout_of(config::LoadedConfig& loaded, int world_size);

// What of that can be said without the tokenizer: LS1110..1116 and LS1101.
void check_sizes(config::LoadedConfig& loaded, int world_size);

// Opens the token files to see that they exist, are whole, long enough for a global batch and hold only ids of the
// model's vocabulary: DataError LS122x. ConfigError LS1082 where data.train is not given.
void check_data(const config::RunConfig& config, const Layout& layout);

}  // namespace lockstep::program
