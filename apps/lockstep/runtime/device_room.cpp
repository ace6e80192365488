#include "apps/lockstep/runtime/device_room.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/text.h"
#include "lockstep/launch/gpu_share.h"
#include "lockstep/plan/room.h"
#include "lockstep/train/executor_options.h"

namespace lockstep::apps {
namespace {

launch::GpuShare share_of(const launch::Identity& identity) {
  return launch::gpu_share(identity, static_cast<int>(at::getNumGPUs()));
}

}  // namespace

void choose_gpu(const config::RunConfig& config, const launch::Identity& identity) {
  if (config.train.device != config::Device::kCuda || !at::hasCUDA() || at::getNumGPUs() == 0) return;
  const auto gpu = static_cast<c10::DeviceIndex>(share_of(identity).gpu);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice({at::kCUDA, gpu});
}

void refuse_what_the_gpu_cannot_hold(const RankJob& job, const launch::Identity& identity, bool twin) {
  const config::RunConfig& config = job.config();
  if (config.train.device != config::Device::kCuda || config.memory.device_limit.count > 0) return;
  const at::Device device = train::device_of(config);
  const auto [free, all] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  // What a rank puts on a GPU is missing to those that look later; under nccl ranks have a GPU each.
  if (job.world().backend() != "nccl")
    job.world().all_ranks("gpu room")->barrier({.id = program::call_id(program::Purpose::kGpuRoom), .blocking = true}).wait();
  const launch::GpuShare share = share_of(identity);
  plan::check_room(config, job.layout(),
                      {.kind = plan::Room::Kind::kDevice,
                       .bytes = static_cast<int64_t>(free),
                       .source = cat("free memory of ", device.str()),
                       .first_rank = job.world().rank() - identity.local_rank + share.first,
                       .ranks = share.ranks,
                       .twin = twin});
}

}  // namespace lockstep::apps
