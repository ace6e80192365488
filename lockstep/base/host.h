// The machine this process runs on.
#pragma once

#include <string>

namespace lockstep {

// Empty where the system does not say.
std::string host_name();

}  // namespace lockstep
