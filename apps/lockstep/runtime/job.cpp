#include "apps/lockstep/runtime/job.h"

#include <ATen/Parallel.h>

#include "apps/lockstep/runtime/backends.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/program/job.h"
#include "lockstep/train/executor_options.h"

namespace lockstep::apps {
namespace {

std::chrono::milliseconds deadline_of(const config::RunConfig& config, const RankJobOptions& options) {
  const std::chrono::duration<double> configured(config.train.comm_timeout.seconds);
  return options.deadline.value_or(std::chrono::ceil<std::chrono::milliseconds>(configured));
}

}  // namespace

RankJob::RankJob(const CommandLine& command_line, const RankJobOptions& options)
    : loaded_(load_config(command_line)), layout_(program::layout_of(loaded_, command_line.identity.world_size)) {
  engine::install_memory_tracking();
  // A host without the device is told at once; ranks that another launcher has spread over hosts meet first.
  const launch::Identity& identity = command_line.identity;
  if (identity.region_fd >= 0 || identity.world_size == 1) train::device_of(loaded_.config);
  layout_.threads = launch::compute_threads(loaded_.config.train.threads, identity);
  at::set_num_threads(layout_.threads);
  world_ = join_world(identity, loaded_.config, deadline_of(loaded_.config, options));
}

}  // namespace lockstep::apps
