// The GPU of a rank, and what it has left, held against the plan.
#pragma once

#include "apps/lockstep/runtime/job.h"
#include "lockstep/launch/identity.h"

namespace lockstep::apps {

// With train.device = "cuda": makes the GPU of this rank (launch::gpu_share) the one of the calling thread, whatever the
// backend. Nothing where LibTorch sees none: train::device_of says so.
void choose_gpu(const config::RunConfig& config, const launch::Identity& identity);

// Before a rank puts anything on its GPU: OutOfMemoryError LS4003 with the ways out where the plan of the ranks on it does not
// fit into its free memory. By all ranks: those that share one have all looked before it returns. Nothing on the CPU, and
// where memory.device_limit says what there is. twin: as judge (ranks.h).
void refuse_what_the_gpu_cannot_hold(const RankJob& job, const launch::Identity& identity, bool twin = false);

}  // namespace lockstep::apps
