// Counts what makes the host wait; see emulated_gpu.h.
#pragma once

#include <string>

namespace lockstep::testing::gpu {

// Of the calling thread.
void note_synchronisation(const std::string& reason);

}  // namespace lockstep::testing::gpu
