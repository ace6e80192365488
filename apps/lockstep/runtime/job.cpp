#include "apps/lockstep/runtime/job.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/program/job.h"

namespace lockstep::apps {
namespace {

std::chrono::milliseconds deadline_of(const config::RunConfig& config, const RankJobOptions& options) {
  const std::chrono::duration<double> configured(config.train.comm_timeout.seconds);
  return options.deadline.value_or(std::chrono::ceil<std::chrono::milliseconds>(configured));
}

std::unique_ptr<comm::World> join_world(const launch::Identity& identity, std::chrono::milliseconds deadline) {
  launch::SharedRegion region = identity.region_fd >= 0 ? launch::SharedRegion::from_descriptor(identity.region_fd)
                                                        : launch::SharedRegion::anonymous(launch::region_bytes(1));
  return std::make_unique<comm::SharedMemoryWorld>(std::make_shared<const launch::SharedRegion>(std::move(region)),
                                                   identity.rank, identity.world_size,
                                                   comm::SharedMemoryOptions{.deadline = deadline});
}

int compute_threads(const config::RunConfig& config, const launch::Identity& identity) {
  if (config.train.threads > 0) return config.train.threads;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / identity.local_size);
}

}  // namespace

RankJob::RankJob(const CommandLine& command_line, const RankJobOptions& options)
    : loaded_(load_config(command_line)), layout_(program::layout_of(loaded_, command_line.identity.world_size)) {
  engine::install_memory_tracking();
  layout_.threads = compute_threads(loaded_.config, command_line.identity);
  at::set_num_threads(layout_.threads);
  world_ = join_world(command_line.identity, deadline_of(loaded_.config, options));
}

}  // namespace lockstep::apps
