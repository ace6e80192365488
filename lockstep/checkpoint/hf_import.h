// Parameters from a Hugging Face model directory, into any layout: every rank reads its own pieces alone.
#pragma once

#include <filesystem>
#include <span>

#include "lockstep/arch/model_config.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

// Fills the parameters and master weights in `state` (each tensor's `local`) from the files in `directory`; everything
// else in it is left as it is. Not collective. Files are read by the ranges of this rank's pieces; 8 MiB are held
// besides. Stored F32, BF16, F16 or F64 is converted to the dtype of `local`. `model` is what config.json describes.
// DataError LS1320..LS1324, LS1290, LS1204 before anything was written to `state`, the same on every rank; LS1328 where
// the head of a tied model is stored and is not the embedding.
void import_hf(const std::filesystem::path& directory, const arch::ModelConfig& model,
               std::span<const engine::StateTensor> state);

}  // namespace lockstep::checkpoint
