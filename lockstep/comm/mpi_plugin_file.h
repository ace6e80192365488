// The file of the MPI plugin: where it is looked for, and what is said where it cannot be used.
#pragma once

#include <filesystem>

#include "lockstep/comm/mpi_api.h"

namespace lockstep::comm {

// Loads liblockstep_mpi.so from `folder`; it stays loaded. EnvironmentError LS3030: the file is not there, and
// `built_with_mpi` says whether this build has made one; or the dynamic linker refuses it, in its words.
MpiFactory* load_mpi_plugin(const std::filesystem::path& folder, bool built_with_mpi);

}  // namespace lockstep::comm
