#include "apps/lockstep/runtime/line_editor.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#ifdef LOCKSTEP_LIBEDIT
#include <editline/readline.h>
#endif

namespace lockstep::apps {
namespace {

std::optional<std::string> plain_line() {
  std::string line;
  for (;;) {
    errno = 0;
    const int c = std::getc(stdin);
    if (c == '\n') return line;
    if (c != EOF) {
      line += static_cast<char>(c);
    } else if (errno == EINTR) {
      std::clearerr(stdin);
      return "";
    } else {
      return line.empty() ? std::nullopt : std::optional(line);
    }
  }
}

}  // namespace

std::optional<std::string> read_line(const std::string& prompt) {
  if (!isatty(STDIN_FILENO)) return plain_line();
#ifdef LOCKSTEP_LIBEDIT
  errno = 0;
  char* typed = ::readline(prompt.c_str());
  if (!typed) return errno == EINTR ? std::optional<std::string>("") : std::nullopt;
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) ::add_history(line.c_str());
  return line;
#else
  std::fputs(prompt.c_str(), stdout);
  std::fflush(stdout);
  return plain_line();
#endif
}

}  // namespace lockstep::apps
