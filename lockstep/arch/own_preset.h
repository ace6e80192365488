// Presets of a program of a user's own: sizes under a name, and blocks that no field of the configuration can say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

struct OwnPreset {
  std::string name{};
  config::ModelSection section{};   // layers, hidden and heads at least; as the presets of the library
  std::vector<BlockSpec> blocks{};  // of the layers, in turn; empty: as the section says
};

// From then on `model.preset` may name it, in every verb, and what else a [model] section says changes its sizes; where it has blocks,
// not those (resolve_model refuses it). Added before the first model is resolved. InternalError where a preset has that name.
void add_preset(const OwnPreset& preset);
const OwnPreset* own_preset(std::string_view name);  // null where none was added
std::vector<std::string> own_preset_names();

}  // namespace lockstep::arch
