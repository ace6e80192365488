// Test programs that run as ranks of mpirun.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/identity.h"

namespace lockstep::testing {

inline launch::Environment environment() {
  launch::Environment variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(std::min(text.size(), text.find('=') + 1));
  }
  return variables;
}

// This program on n ranks of this host, more than it has cores and by root too. Where one is lost, the others have longer
// than mpirun's second to say so.
inline std::vector<std::string> mpirun_command(int n, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
                                    "odls_base_sigkill_timeout", "3", "-n", std::to_string(n), "/proc/self/exe"};
  std::vector<char> path(4096);
  words.back().assign(path.data(), static_cast<size_t>(readlink("/proc/self/exe", path.data(), path.size())));
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

}  // namespace lockstep::testing
