// Values that follow from the model and the number of ranks, where nobody set them. Every verb takes them from here.
#pragma once

#include "lockstep/arch/model_config.h"
#include "lockstep/config/load.h"

namespace lockstep::program {

// Of what stands at its default:
//   train.seq_len       256, or model.max_seq_len where that is less
//   train.micro_batch   the largest up to 8 of which the batch of a rank is a multiple
//   train.global_batch  32, or the next multiple of dp * micro_batch (with schedule interleaved * pp)
// A value that was set stays. ConfigError for a model that cannot be resolved.
void settle_defaults(config::LoadedConfig& loaded, int world_size);
void settle_defaults(config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size);

}  // namespace lockstep::program
