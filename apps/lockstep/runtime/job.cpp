#include "apps/lockstep/runtime/job.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "apps/lockstep/runtime/backends.h"
#include "apps/lockstep/runtime/device_room.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/plan/room.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/train/executor_options.h"

namespace lockstep::apps {
namespace {

std::chrono::milliseconds deadline_of(const config::RunConfig& config, const RankJobOptions& options) {
  const std::chrono::duration<double> configured(config.train.comm_timeout.seconds);
  return options.deadline.value_or(std::chrono::ceil<std::chrono::milliseconds>(configured));
}

}  // namespace

RankJob::RankJob(const CommandLine& command_line, const RankJobOptions& options)
    : loaded_(load_config(command_line)) {
  engine::install_memory_tracking();
  // A host without the device is told at once; ranks that another launcher has spread over hosts meet first.
  const launch::Identity& identity = command_line.identity;
  choose_gpu(loaded_.config, identity);
  if (identity.region_fd >= 0 || identity.world_size == 1) train::device_of(loaded_.config);
  const int threads = launch::compute_threads(loaded_.config.train.threads, identity);
  at::set_num_threads(threads);
  world_ = join_world(command_line, loaded_.config, deadline_of(loaded_.config, options),
                      [&] { return train::config_facts(loaded_); });
  guarded(*this, [&] { judge(identity, threads, options.twin); });
}

void RankJob::judge(const launch::Identity& identity, int threads, bool twin) {
  layout_ = program::layout_of(loaded_, identity.world_size);
  layout_.threads = threads;
  if (identity.started_by_us() || identity.alone()) return;
  program::check_data(loaded_.config, layout_);
  const int first = identity.local_size > 0 ? identity.rank - identity.local_rank : identity.rank;
  plan::refuse_what_does_not_fit(loaded_.config, layout_, {.first_rank = first, .ranks = std::max(1, identity.local_size), .twin = twin});
}

}  // namespace lockstep::apps
