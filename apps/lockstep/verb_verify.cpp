// `lockstep verify`: does the layout compute what one rank computes?
#include "apps/lockstep/ranks.h"
#include "apps/lockstep/verbs.h"
#include "apps/lockstep/verify_steps.h"

namespace lockstep::apps {

int verb_verify(const CommandLine& command_line) {
  refuse_words(command_line);
  config::LoadedConfig loaded = load_config(command_line);
  const int ranks = ranks_of(command_line, loaded.config);
  if (!is_rank(command_line)) verify_steps(command_line);  // ranks compare first what they were told
  judge(command_line, loaded, ranks, /*twin=*/true);
  return run_on_ranks(command_line, loaded.config, {.ranks = ranks});
}

}  // namespace lockstep::apps
