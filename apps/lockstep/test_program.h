// The program as a person calls it, for the tests of its verbs.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace lockstep::apps {

struct Outcome {
  int code;
  std::string output;  // of stdout and stderr
};

// `lockstep ARGUMENTS`, read by a shell.
inline Outcome run_program(const std::string& arguments) {
  FILE* pipe = ::popen((LOCKSTEP_PROGRAM " " + arguments + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

}  // namespace lockstep::apps
