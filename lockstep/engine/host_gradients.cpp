#include "lockstep/engine/host_gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::engine {

HostGradients::HostGradients(const arch::FlatLayout& parts, UnitBufferOptions host)
    : sums_(parts, std::move(host)), arriving_(parts.units.size()) {
  for (size_t unit = 0; unit < arriving_.size(); ++unit) {
    sums_.hold(unit);
    sums_.unit(unit).zero_();
    largest_ = std::max(largest_, static_cast<int64_t>(sums_.unit(unit).nbytes()));
  }
}

void HostGradients::add(size_t unit, const at::Tensor& part, bool first) {
  const at::Tensor& sum = sums_.unit(unit);
  if (part.is_cpu()) {
    if (first)
      sum.copy_(part);
    else
      sum.add_(part);
    return;
  }
  if (!queue_) queue_ = std::make_unique<CopyQueue>(CopyQueueOptions{.max_bytes = 2 * largest_});
  const std::string what = cat("gradient of unit ", unit, " to the host");
  if (first) {
    arriving_[unit].wait();  // a step that was broken off may have left something
    Copy copy = arriving_[unit] = queue_->copy(part, sum, what);
    return copy.order_after();
  }
  const at::Tensor landing = at::empty(part.sizes(), sum.options().pinned_memory(true));
  const std::shared_ptr<DeviceCopy> across = queue_->ask(part.device(), Direction::kToHost);
  across->start(part, landing);
  across->order_after();
  // Copies to the host follow each other: the first part of the step has landed before this one.
  arriving_[unit] = queue_->start(what, static_cast<int64_t>(landing.nbytes()),
                                  [across, landing, sum, what, deadline = queue_->options().deadline] {
                                    across->wait(deadline, what);
                                    sum.add_(landing);
                                  });
}

const at::Tensor& HostGradients::unit(size_t unit) const {
  arriving_.at(unit).wait();
  return sums_.unit(unit);
}

void HostGradients::zero() {
  for (size_t i = 0; i < arriving_.size(); ++i) unit(i).zero_();
}

}  // namespace lockstep::engine
