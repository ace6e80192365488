// What the GPU of a rank has left, held against the plan.
#pragma once

#include "apps/lockstep/runtime/job.h"

namespace lockstep::apps {

// Before a rank puts anything on its GPU: OutOfMemoryError LS4003 with the ways out where the plan of the ranks on it does not
// fit into its free memory. Nothing on the CPU, and where memory.device_limit says what there is. twin: as
// refuse_what_does_not_fit (rooms.h).
void refuse_what_the_gpu_cannot_hold(const RankJob& job, int local_rank, int local_size, bool twin = false);

}  // namespace lockstep::apps
