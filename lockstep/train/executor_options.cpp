#include "lockstep/train/executor_options.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"

namespace lockstep::train {

at::Device device_of(const config::RunConfig& config) {
  if (config.train.device == config::Device::kCpu) return at::kCPU;
  if (!at::hasCUDA() || at::getNumGPUs() == 0)
    throw EnvironmentError({.code = "LS3001",
                            .what = "train.device = \"cuda\", but LibTorch sees no GPU",
                            .way_out = "use train.device = \"cpu\", or a CUDA build of PyTorch on a machine with a GPU"});
  // The one that joining the job has chosen for this rank.
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

engine::ExecutorOptions executor_options(const config::RunConfig& config, const program::Layout& layout) {
  return {.layout = layout,
          .device = device_of(config),
          .seed = static_cast<uint64_t>(config.train.seed),
          .max_grad_norm = config.optimizer.max_grad_norm,
          .skip_nonfinite = config.train.nonfinite == config::NonFinite::kSkip,
          .disk_path = config.memory.disk_path};
}

}  // namespace lockstep::train
