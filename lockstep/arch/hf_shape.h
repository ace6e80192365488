// A model as the keys of a config.json: for hf_config_write.cpp.
#pragma once

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"

namespace lockstep::arch {

// The keys that say the shape of the model and of its layers; rotary parameters apart. What no key can say is left out.
Json hf_shape_json(const ModelConfig& model);
// Rotary parameters, in the spelling that the file has, or else in that of the family.
void set_hf_rope(const ModelConfig& model, Json& config);

}  // namespace lockstep::arch
