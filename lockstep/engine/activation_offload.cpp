#include "lockstep/engine/activation_offload.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::engine {

ActivationOffload::ActivationOffload(CopyQueue& copies, std::shared_ptr<MemoryAccount> memory)
    : copies_(copies), memory_(std::move(memory)) {}

// The device's stream comes behind the copy before the memory goes back: whatever takes it next is behind it too.
void ActivationOffload::settle() {
  if (!leaving_.device.defined()) return;
  leaving_.copy.order_after();
  leaving_ = {};
}

// A spare buffer was read by a copy that the stream is behind since take(); the next copy into it begins behind the stream.
at::Tensor ActivationOffload::host_memory(const at::Tensor& like) {
  const auto fits = [&](const at::Tensor& spare) {
    return spare.sizes() == like.sizes() && spare.scalar_type() == like.scalar_type();
  };
  if (const auto found = std::find_if(spare_.begin(), spare_.end(), fits); found != spare_.end()) {
    at::Tensor spare = std::move(*found);
    spare_.erase(found);
    return spare;
  }
  const MemoryScope scope(memory_, MemoryCategory::kHost);
  return at::empty(like.sizes(), like.options().device(at::kCPU).pinned_memory(!like.is_cpu()));
}

void ActivationOffload::evict(Key key, at::Tensor activation) {
  settle();
  LOCKSTEP_CHECK(!host_.contains(key), "layer ", key.first, ", microbatch ", key.second, " is on the host already");
  leaving_.host = host_memory(activation);
  leaving_.device = activation.contiguous();
  leaving_.copy = copies_.copy(leaving_.device, leaving_.host, cat("input of layer ", key.first, " to the host"));
  host_.emplace(key, leaving_.host);
  device_.emplace(key, activation.device());
}

// A copy begins behind what the stream holds, which settle() has put behind all evictions, the one of `key` among them.
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
  Moving& moving = found.mapped();
  moving.copy.order_after();
  if (!moving.device.is_cpu()) spare_.push_back(std::move(moving.host));
  return moving.device;
}

void ActivationOffload::clear() {
  settle();
  for (auto& [key, moving] : fetched_) moving.copy.order_after();
  fetched_.clear();
  host_.clear();
  device_.clear();
}

}  // namespace lockstep::engine
