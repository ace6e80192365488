#include "apps/lockstep/runtime_call.h"

#include <dlfcn.h>
#include <signal.h>

#include <filesystem>

#include "lockstep/base/text.h"

namespace lockstep::apps {

std::string find_runtime_library() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {".", "../lib", "../" LOCKSTEP_LIBDIR}) {
    const auto file = (program / folder / "liblockstep_runtime.so").lexically_normal();
    if (std::filesystem::exists(file)) return file.string();
  }
  return "";
}

int call_runtime(const CommandLine& command_line) {
  const RuntimeCall call{.command_line = command_line};
  if (command_line.linked_runtime) {
    ::signal(SIGUSR2, SIG_IGN);
    return command_line.linked_runtime(&call);
  }
  const std::string file = find_runtime_library();
  if (file.empty()) {
    throw EnvironmentError({.code = "LS3120",
                            .what = cat("lockstep ", command_line.verb,
                                        " computes, and liblockstep_runtime.so is neither beside the program nor in ../lib"),
                            .way_out = "make build; this program may come from a build without LibTorch (preset core)"});
  }
  // SIGUSR2 asks what a rank is doing. Loading takes its time, and until the rank listens the question must not end it.
  ::signal(SIGUSR2, SIG_IGN);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded until the process ends
  void* function = library ? ::dlsym(library, kRuntimeVerb) : nullptr;
  if (!function) {
    throw EnvironmentError({.code = "LS3120",
                            .what = cat(file, " does not load: ", ::dlerror()),
                            .way_out = "lockstep doctor tells what is missing"});
  }
  return reinterpret_cast<RuntimeVerb*>(function)(&call);
}

}  // namespace lockstep::apps
