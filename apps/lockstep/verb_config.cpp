// lockstep config show | docs
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
      reject("LS1004", "lockstep config docs is the same for every configuration and number of ranks",
             "lockstep config show prints yours");
    print(config::config_reference_markdown());
    return 0;
  }
  if (what != "show") reject("LS1004", cat("lockstep config '", what, "'"), "write show or docs");
  config::LoadedConfig loaded = load_config(command_line);
  if (command_line.ranks)
    program::check_sizes(loaded, *command_line.ranks);
  else
    program::settle_defaults(loaded, arch::resolve_model(loaded.config.model, 1, loaded.config.moe), config::ranks_wanted(loaded.config));
  print(config::resolved_toml(loaded));
  return 0;
}

}  // namespace lockstep::apps
