// The model's sizes as JSON, as checkpoints keep them.
#pragma once

#include <string_view>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"

namespace lockstep::arch {

Json model_json(const ModelConfig& model);
// CheckpointError LS1312 naming `origin` and the key where one is missing or of another type.
ModelConfig parse_model_json(const Json& json, std::string_view origin);

}  // namespace lockstep::arch
