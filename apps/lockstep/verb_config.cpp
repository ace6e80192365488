// lockstep config show | docs
#include <cstdio>

#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {

int verb_config(const CommandLine& command_line) {
  const std::string what = join(command_line.words(), " ");
  if (what == "docs") {
    if (!command_line.config_files().empty() || !command_line.overrides.empty() || command_line.ranks)
      throw ConfigError({.code = "LS1004",
                         .what = "lockstep config docs is the same for every configuration and number of ranks",
                         .way_out = "lockstep config show prints yours"});
    std::fputs(config::config_reference_markdown().c_str(), stdout);
    return 0;
  }
  if (what != "show") {
    throw ConfigError({.code = "LS1004", .what = cat("lockstep config '", what, "'"), .way_out = "write show or docs"});
  }
  config::LoadedConfig loaded = load_config(command_line);
  if (command_line.ranks)
    program::check_sizes(loaded, *command_line.ranks);
  else
    program::settle_defaults(loaded, config::ranks_wanted(loaded.config));
  std::fputs(config::resolved_toml(loaded).c_str(), stdout);
  return 0;
}

}  // namespace lockstep::apps
