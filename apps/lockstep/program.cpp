#include "apps/lockstep/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure_file.h"

namespace lockstep::apps {
namespace {

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

launch::Environment environment() {
  launch::Environment variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

int fail(ExitCode code, const std::string& text) {
  std::fflush(stdout);
  std::fputs((text + "\n").c_str(), stderr);
  launch::tell_launcher(environment(), text);
  return static_cast<int>(code);
}

// `who` becomes what stands before an error: nothing, or the rank where many write to one terminal.
int run(std::vector<std::string> arguments, RuntimeVerb* linked, std::string& who) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") return print(overview());
  if (arguments[0] == "--version") return print("lockstep " LOCKSTEP_VERSION "\n");
  const Verb& verb = find_verb(arguments[0]);
  // A verb with a flag --rank of its own is never started as one rank of several.
  const bool own_rank =
      std::any_of(verb.flags.begin(), verb.flags.end(), [](auto& flag) { return flag.name == "rank"; });
  launch::Identity identity = own_rank ? launch::Identity{} : launch::take_identity(arguments);
  const launch::Environment variables = environment();
  if (verb.on_ranks && identity.launcher == launch::Launcher::kNone) identity = launch::detect_identity(variables);
  identity.token = launch::job_token(variables);
  if (!identity.alone() && !identity.started_by_us()) who = cat("[rank ", identity.rank, "] ");
  CommandLine command_line = parse_command_line(verb, {arguments.begin() + 1, arguments.end()});
  command_line.written = arguments;
  command_line.identity = identity;
  command_line.linked_runtime = linked;
  if (command_line.help) return print(help_text(verb));
  return verb.function ? verb.function(command_line) : call_runtime(command_line);
}

}  // namespace

int run_program(const std::vector<std::string>& arguments, RuntimeVerb* linked) {
  std::string who;
  try {
    return run(arguments, linked, who);
  } catch (const Error& error) {
    return fail(error.exit_code(), who + error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kOutOfMemory, who + "error LS4002: the host is out of memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::kInternal, cat(who, "internal error: ", error.what()));
  }
}

}  // namespace lockstep::apps
