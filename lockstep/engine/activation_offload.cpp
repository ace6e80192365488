#include "lockstep/engine/activation_offload.h"

#include <ATen/ops/empty.h>

#include "lockstep/base/check.h"

namespace lockstep::engine {

ActivationOffload::ActivationOffload(CopyQueue& copies, std::shared_ptr<MemoryAccount> memory)
    : copies_(copies), memory_(std::move(memory)) {}

void ActivationOffload::settle() {
  if (!leaving_.device.defined()) return;
  leaving_.copy.wait();
  leaving_ = {};
}

void ActivationOffload::evict(Key key, at::Tensor activation) {
  settle();
  LOCKSTEP_CHECK(!host_.contains(key), "layer ", key.first, ", microbatch ", key.second, " is on the host already");
  {
    const MemoryScope scope(memory_, MemoryCategory::kHost);
    leaving_.host = at::empty(activation.sizes(), activation.options().device(at::kCPU).pinned_memory(activation.is_cuda()));
  }
  leaving_.device = activation.contiguous();
  leaving_.copy = copies_.copy(leaving_.device, leaving_.host, cat("input of layer ", key.first, " to the host"));
  host_.emplace(key, leaving_.host);
  device_.emplace(key, activation.device());
}

void ActivationOffload::fetch(Key key) {
  settle();
  auto host = host_.extract(key);
  LOCKSTEP_CHECK(!host.empty(), "layer ", key.first, ", microbatch ", key.second, " is not on the host");
  const at::Tensor& from = host.mapped();
  Moving moving{.device = at::empty(from.sizes(), from.options().device(device_.at(key))), .host = from, .copy = {}};
  moving.copy = copies_.copy(moving.host, moving.device, cat("input of layer ", key.first, " to the device"));
  device_.erase(key);
  fetched_.emplace(key, std::move(moving));
}

at::Tensor ActivationOffload::take(Key key) {
  auto found = fetched_.extract(key);
  LOCKSTEP_CHECK(!found.empty(), "layer ", key.first, ", microbatch ", key.second, " was not fetched");
  found.mapped().copy.wait();
  return found.mapped().device;
}

void ActivationOffload::clear() {
  settle();
  for (auto& [key, moving] : fetched_) moving.copy.wait();
  fetched_.clear();
  host_.clear();
  device_.clear();
}

}  // namespace lockstep::engine
