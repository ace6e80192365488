#include "lockstep/engine/activation_offload.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::engine {

ActivationOffload::ActivationOffload(CopyQueue& copies, std::shared_ptr<MemoryAccount> memory)
    : copies_(copies), memory_(std::move(memory)) {}

// The device's stream comes behind the copy before the memory goes back: whatever takes it next is behind it too.
void ActivationOffload::settle() {
  copying_out_.order_after();
  leaving_.reset();
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
  const auto [place, fresh] = inputs_.try_emplace(key, Input{.host = host_memory(activation), .home = activation.device()});
  LOCKSTEP_CHECK(fresh, "layer ", key.first, ", microbatch ", key.second, " is on the host already");
  leaving_ = activation.contiguous();
  copying_out_ = copies_.copy(leaving_, place->second.host, cat("input of layer ", key.first, " to the host"));
}

bool ActivationOffload::fetched(Key key) const {
  const auto found = inputs_.find(key);
  return found != inputs_.end() && found->second.back.defined();
}

// A copy begins behind what the stream holds, which settle() has put behind all evictions, the one of `key` among them.
Copy ActivationOffload::fetch(Key key) {
  settle();
  const auto found = inputs_.find(key);
  LOCKSTEP_CHECK(found != inputs_.end() && !found->second.back.defined(), "layer ", key.first, ", microbatch ", key.second,
                 " is not on the host");
  Input& input = found->second;
  input.back = at::empty(input.host.sizes(), input.host.options().device(input.home));
  return copies_.copy(input.host, input.back, cat("input of layer ", key.first, " to the device"));
}

at::Tensor ActivationOffload::take(Key key) {
  LOCKSTEP_CHECK(fetched(key), "layer ", key.first, ", microbatch ", key.second, " was not fetched");
  auto found = inputs_.extract(key);
  Input& input = found.mapped();
  if (!input.back.is_cpu()) spare_.push_back(std::move(input.host));
  return input.back;
}

// Copies that nobody has joined hold what they use.
void ActivationOffload::clear() {
  settle();
  inputs_.clear();
}

}  // namespace lockstep::engine
