#include "apps/lockstep/in_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

// `act` gets the end of a pipe that what it writes into becomes the answer; it does not return.
ChildAnswer answer_of(const std::function<void(int out)>& act) {
  int ends[2];
  if (::pipe(ends) != 0) return {false, cat("pipe: ", std::strerror(errno))};
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return {false, cat("fork: ", std::strerror(errno))};
  if (child == 0) {
    act(ends[1]);
    ::_exit(1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return {false, cat("crashed with ", ::strsignal(WTERMSIG(status)))};
  return {WIFEXITED(status) && WEXITSTATUS(status) == 0, text};
}

}  // namespace

ChildAnswer in_child(const std::function<ChildAnswer()>& work) {
  return answer_of([&](int out) {
    const auto [ok, text] = work();
    const bool written = ::write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(ok && written ? 0 : 1);
  });
}

ChildAnswer run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return answer_of([&](int out) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    const std::string problem = cat(words[0], ": ", std::strerror(errno));
    if (::write(out, problem.data(), problem.size()) < 0) ::_exit(1);
  });
}

}  // namespace lockstep::apps
