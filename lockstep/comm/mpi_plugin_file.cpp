#include "lockstep/comm/mpi_plugin_file.h"

#include <dlfcn.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {

MpiFactory* load_mpi_plugin(const std::filesystem::path& folder, bool built_with_mpi) {
  const std::filesystem::path file = folder / "liblockstep_mpi.so";
  if (!std::filesystem::exists(file)) {
    if (!built_with_mpi)
      throw EnvironmentError({.code = "LS3030",
                              .what = "backend mpi is not part of this build: CMake found no MPI library",
                              .way_out = "apt install libopenmpi-dev openmpi-bin && cmake --preset release && make build"});
    throw EnvironmentError({.code = "LS3030",
                            .what = cat("backend mpi is a file of its own, and it is missing: ", file.string()),
                            .way_out = "make build makes it (target lockstep_mpi); put it beside liblockstep_runtime.so"});
  }
  // Open MPI loads its own parts later, and they look for its symbols among the global ones.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* function = library ? dlsym(library, kMpiFactory) : nullptr;
  if (!function)
    throw EnvironmentError({.code = "LS3030",
                            .what = cat(file.string(), " does not load: ", dlerror()),
                            .way_out = "install the library that is named (Debian: openmpi-bin), or make build with the "
                                       "MPI that is there"});
  return reinterpret_cast<MpiFactory*>(function);
}

}  // namespace lockstep::comm
