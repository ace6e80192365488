#include "apps/lockstep/runtime/device_room.h"
#include "apps/lockstep/runtime/job.h"
#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/predicted_step.h"
#include "lockstep/train/out_of_memory.h"
#include "lockstep/train/trainer.h"

namespace lockstep::apps {

namespace {

// Of rank 0, which tells it.
std::optional<train::PredictedStep> predicted_step(const CommandLine& command_line, const RankJob& job) {
  const std::string file = command_line.value("machine");
  if (file.empty() || job.world().rank() != 0) return std::nullopt;
  const plan::StepEstimate step = plan::predicted_step(file, job.layout(), job.config().train.device, job.config().train.threads);
  return train::PredictedStep{.seconds = step.seconds, .low = step.low, .high = step.high, .machine = file};
}

}  // namespace

int verb_train_on_rank(const CommandLine& command_line) {
  const RankJob job(command_line);
  const auto train = [&] {
    refuse_what_the_gpu_cannot_hold(job, command_line.identity);
    train::Trainer trainer({.loaded = job.loaded(),
                            .layout = job.layout(),
                            .world = job.world(),
                            .launcher = command_line.identity.source,
                            .version = LOCKSTEP_VERSION,
                            .stop_after_seconds = parse_duration(command_line.value("stop-after")),
                            .second_signal_ends = !command_line.identity.started_by_us() && command_line.identity.alone(),
                            .predicted = predicted_step(command_line, job)});
    return static_cast<int>(trainer.run());
  };
  return train::with_memory_table(job.config(), job.layout(), job.world().rank(), [&] { return guarded(job, train); });
}

}  // namespace lockstep::apps
