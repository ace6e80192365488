#include "apps/lockstep/runtime/job.h"
#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/train/trainer.h"

namespace lockstep::apps {

int verb_train_on_rank(const CommandLine& command_line) {
  const RankJob job(command_line);
  return guarded(job, [&] {
    train::Trainer trainer({.loaded = job.loaded(),
                            .layout = job.layout(),
                            .world = job.world(),
                            .launcher = command_line.identity.source,
                            .version = LOCKSTEP_VERSION});
    trainer.run();
    return static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace lockstep::apps
