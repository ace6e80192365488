#include "apps/lockstep/runtime/device_room.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/program/ways_out.h"
#include "lockstep/train/executor_options.h"

namespace lockstep::apps {

void refuse_what_the_gpu_cannot_hold(const RankJob& job, int local_rank, int local_size, bool twin) {
  const config::RunConfig& config = job.config();
  if (config.train.device != config::Device::kCuda || config.memory.device_limit.count > 0) return;
  const at::Device device = train::device_of(config);
  const auto [free, all] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  const bool own = job.world().backend() == "nccl";  // else the ranks of a host share the first one
  const int ranks = own ? 1 : std::max(1, local_size);
  program::check_room(config, job.layout(),
                      {.kind = program::Room::Kind::kDevice,
                       .bytes = static_cast<int64_t>(free),
                       .source = cat("free memory of ", device.str()),
                       .first_rank = own ? job.world().rank() : job.world().rank() - local_rank,
                       .ranks = ranks,
                       .twin = twin});
}

}  // namespace lockstep::apps
