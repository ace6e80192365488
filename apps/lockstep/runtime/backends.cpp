#include "apps/lockstep/runtime/backends.h"

#include <unistd.h>

#include <cstdio>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/mpi_world.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/config/fields.h"
#include "lockstep/launch/backend_choice.h"
#include "lockstep/launch/region_handoff.h"

namespace lockstep::apps {
namespace {

using config::Backend;
using std::chrono::milliseconds;

struct Join {
  const launch::Identity& identity;
  milliseconds start_deadline;  // of all ranks' coming
  milliseconds deadline;        // of every wait from then on
};

// Ranks that the launcher gives no common name are told by their common parent.
std::string job_name(const launch::Identity& identity) {
  const std::string job = identity.job.empty() ? cat("children of process ", getppid()) : identity.job;
  return identity.attempt.empty() ? job : cat(job, ", attempt ", identity.attempt);
}

launch::SharedRegion region_of(const Join& join) {
  const launch::Identity& identity = join.identity;
  if (identity.region_fd >= 0) return launch::SharedRegion::from_descriptor(identity.region_fd);
  if (identity.alone()) return launch::SharedRegion::anonymous(launch::region_bytes(1));
  return launch::share_region({.job = job_name(identity),
                               .token = identity.token,
                               .rank = identity.rank,
                               .world_size = identity.world_size,
                               .deadline = join.start_deadline});
}

std::unique_ptr<comm::World> join_shared_memory(const Join& join) {
  return std::make_unique<comm::SharedMemoryWorld>(std::make_shared<const launch::SharedRegion>(region_of(join)),
                                                   join.identity.rank, join.identity.world_size,
                                                   comm::SharedMemoryOptions{.deadline = join.deadline});
}

void announce(const launch::Identity& identity, const launch::BackendChoice& choice) {
  if (identity.started_by_us() || identity.alone() || identity.rank != 0) return;
  std::fputs(cat("joining ", identity.world_size, " ranks over ", name_of(choice.backend), " (", choice.why, "); told by ",
                 identity.source, "\n")
                 .c_str(),
             stderr);
}

}  // namespace

std::unique_ptr<comm::World> join_world(const launch::Identity& identity, const config::RunConfig& config,
                                        milliseconds deadline) {
  const launch::BackendChoice choice = launch::choose_backend(identity, config);
  announce(identity, choice);
  const std::chrono::duration<double> start(config.train.join_timeout.seconds);
  const Join join{.identity = identity, .start_deadline = std::chrono::ceil<milliseconds>(start), .deadline = deadline};
  switch (choice.backend) {
    case Backend::kSharedMemory:
      return join_shared_memory(join);
    case Backend::kMpi:
      return comm::join_mpi(identity.rank, identity.world_size, {.deadline = deadline});
    case Backend::kNccl:
      throw EnvironmentError({.code = "LS3122",
                              .what = "the backend nccl is not part of this build",
                              .way_out = "parallel.backend = \"shared_memory\" joins the ranks of one host"});
    case Backend::kAuto:
      break;
  }
  LOCKSTEP_CHECK(false, "backend ", name_of(choice.backend), " was not resolved");
}

}  // namespace lockstep::apps
