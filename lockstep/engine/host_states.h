// What a rank offloads, on the host: of every unit's part the fp32 values, the optimizer's slots, the gradient sums of the step
// and, where parameters are offloaded in bf16, their compute copy (Ren et al. 2021, ZeRO-Offload, section 4).
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/disk_states.h"
#include "lockstep/engine/unit_buffers.h"

namespace lockstep::engine {

// One block of memory per unit, so that it moves to and from a disk as one: its StateFields. Gradients are apart and stay.
// Everything starts as zeros. "Part" = [numel / shards] of a unit. What lies on disk and is not fetched is
// given as memory of the file: reading it is slow, and accept() must follow writes.
class HostStates {
 public:
  HostStates(const arch::FlatLayout& layout, const HostStatesOptions& options);

  // For the host to read and write: where a GPU still reads values or copy (read_by), the host waits.
  at::Tensor value(size_t unit) const;
  at::Tensor slot(size_t unit, size_t index) const { return field(unit, StateFields::slot(index)); }
  at::Tensor compute(size_t unit) const;  // bf16 copy where there is one, else the values
  // The same to be copied to the device; `copy` reads it.
  at::Tensor fetched_from(size_t unit) const;
  void read_by(size_t unit, const Copy& copy) { reading_.at(unit) = copy; }

  at::Tensor gradient(size_t unit) const { return gradients_.unit(unit); }
  void zero_gradients();

  bool on_disk(size_t unit) const { return on_disk_.at(unit); }
  DiskStates* disk() { return disk_.get(); }  // null where nothing is on disk
  // While it lives the states of a unit are in memory, to be changed between steps.
  class Open {
   public:
    Open(HostStates* states, size_t unit);  // null: nothing is to do
    ~Open() noexcept(false);                // throws only where no exception is on its way
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    DiskStates* disk_ = nullptr;
    size_t unit_;
    int exceptions_ = std::uncaught_exceptions();
  };
  // After what was given of units on disk was written to.
  void accept() {
    if (disk_) disk_->accept();
  }

 private:
  at::Tensor field(size_t unit, size_t index) const;
  void hold_all(bool pinned);

  std::vector<StateFields> fields_;  // of the parts, by unit
  std::vector<bool> on_disk_;
  UnitBuffers states_, gradients_;
  mutable std::vector<Copy> reading_;  // by unit: the last
  std::unique_ptr<DiskStates> disk_;
};

// The parts of one rank as a layout of their own, one shard: unit u has `numel(u)` elements.
arch::FlatLayout layout_of_parts(const arch::FlatLayout& layout, const std::function<int64_t(size_t unit)>& numel);

}  // namespace lockstep::engine
