// What a rank leaves for a launcher that reports failures itself.
#pragma once

#include <string>

#include "lockstep/launch/identity.h"

namespace lockstep::launch {

// torchrun shows as root cause what it finds in the file of TORCHELASTIC_ERROR_FILE: writes the message there, with the
// time, by which torchrun knows whose failure was first. Does nothing below other launchers, or where the file cannot
// be written.
void tell_launcher(const Environment& environment, const std::string& message);

}  // namespace lockstep::launch
