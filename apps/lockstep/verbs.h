// The table of verbs. A new verb is one row in verbs.cpp and one file verb_<name>.cpp; a verb that computes is one row
// here without a function, and one row and one file in runtime/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

struct Verb {
  std::string_view name;
  std::string_view help;           // one line
  std::string_view usage;          // what follows the verb: "run.toml... [-n N] [--steps K]"
  std::vector<Flag> flags{};       // its own; --help is everyone's
  bool has_json = false;           // --json: one object on stdout
  bool takes_config = false;       // reads run.toml: accepts -n and --section.field=value
  bool on_ranks = false;           // runs on several ranks: asks who has started this process
  int (*function)(const CommandLine&) = nullptr;  // returns the exit code; none = the runtime library has the verb
};

const std::vector<Verb>& verbs();

// ConfigError LS1001 naming the nearest verb.
const Verb& find_verb(const std::string& name);

// The text of `lockstep --help` and of `lockstep <verb> --help`.
std::string overview();
std::string help_text(const Verb& verb);

int verb_config(const CommandLine& command_line);
int verb_data(const CommandLine& command_line);
int verb_doctor(const CommandLine& command_line);
int verb_generate(const CommandLine& command_line);
int verb_launch(const CommandLine& command_line);
int verb_plan(const CommandLine& command_line);
int verb_show(const CommandLine& command_line);
int verb_train(const CommandLine& command_line);
int verb_verify(const CommandLine& command_line);

}  // namespace lockstep::apps
