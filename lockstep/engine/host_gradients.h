// The sums of a step's gradients on the host, of every unit's part: what arrives from the device is added here (Ren et al. 2021,
// ZeRO-Offload, section 4.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/unit_buffers.h"

namespace lockstep::engine {

class HostGradients {
 public:
  HostGradients() = default;  // holds nothing
  // `parts`: a unit of it is one part. Everything starts as zeros. `host` as UnitBuffers takes it, transient.
  HostGradients(const arch::FlatLayout& parts, UnitBufferOptions host);

  // sum = part where it is the first of the step, else sum += part; fp32, [numel of the part]. From a GPU nobody waits on the
  // host: the stream comes behind the copy, so that the caller may give the part's memory back at once; a first part goes
  // straight into its place, others into pinned memory from which a thread adds them. At most three parts wait for it.
  void add(size_t unit, const at::Tensor& part, bool first);
  // Complete: the host waits for what is on its way. EnvironmentError LS4014 past the deadline.
  const at::Tensor& unit(size_t unit) const;
  void zero();

 private:
  UnitBuffers sums_;
  int64_t largest_ = 0;                 // bytes of a part
  mutable std::vector<Copy> arriving_;  // by unit: the last
  std::unique_ptr<CopyQueue> queue_;    // null before the first part from a GPU
};

}  // namespace lockstep::engine
