#include "apps/lockstep/runtime/device_room.h"
#include "apps/lockstep/runtime/job.h"
#include "apps/lockstep/runtime/verbs.h"
#include "apps/lockstep/verify_steps.h"
#include "lockstep/train/out_of_memory.h"
#include "lockstep/train/verify.h"

namespace lockstep::apps {

int verb_verify_on_rank(const CommandLine& command_line) {
  // The other ranks wait while rank 0 also runs the one-rank twin; a peer that dies is noticed at once all the same.
  const RankJob job(command_line, {.deadline = std::chrono::hours(1), .twin = true});
  const VerifySteps steps = verify_steps(command_line);
  const auto verify = [&] {
    refuse_what_the_gpu_cannot_hold(job, command_line.identity, /*twin=*/true);
    return train::verify(job.config(), job.layout(), job.world(), {.steps = steps.all, .free = steps.free});
  };
  const train::VerifyReport report = train::with_memory_table(job.config(), job.layout(), job.world().rank(),
                                                              [&] { return guarded(job, verify); });
  if (job.world().rank() == 0)
    print(command_line.json ? verify_json(report) : verify_text(report));
  return static_cast<int>(report.ok ? ExitCode::kOk : ExitCode::kMismatch);
}

}  // namespace lockstep::apps
