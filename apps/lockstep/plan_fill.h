// A run.toml that has the layout of a plan.
#pragma once

#include <string>

#include "lockstep/config/load.h"

namespace lockstep::apps {

// Every key that was set, assumed or belongs to the layout, with its origin as a comment; what stays at its default is left out. Loads to
// `chosen`. `heading`: lines of a comment at the top.
std::string filled_toml(const config::LoadedConfig& loaded, const config::RunConfig& chosen, const std::string& heading);

}  // namespace lockstep::apps
