// What a rank offloads, on the host: of every unit's part the fp32 values, the optimizer's slots, the gradient sums of the step
// and, where parameters are offloaded in bf16, their compute copy (Ren et al. 2021, ZeRO-Offload, section 4).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/disk_states.h"
#include "lockstep/engine/unit_buffers.h"

namespace lockstep::engine {

// One block of memory per unit, so that it moves to and from a disk as one: its StateFields. Gradients are apart and stay.
// Everything starts as zeros. "Part" = [numel / shards] of a unit. What lies on disk and is not fetched is
// given as memory of the file: reading it is slow, and disk()->accept() must follow writes.
class HostStates {
 public:
  HostStates(const arch::FlatLayout& layout, const HostStatesOptions& options);

  // For the host to read and write: where a GPU still reads values or copy (read_by), the host waits.
  at::Tensor value(size_t unit) const;
  at::Tensor slot(size_t unit, size_t index) const { return field(unit, StateFields::slot(index)); }
  at::Tensor compute(size_t unit) const;  // bf16 copy where there is one, else the values
  // The same to be copied to the device; `copy` reads it.
  at::Tensor fetched_from(size_t unit) const { return field(unit, fields_.at(unit).compute()); }
  void read_by(size_t unit, const Copy& copy) { reading_.at(unit) = copy; }

  at::Tensor gradient(size_t unit) const { return gradients_.unit(unit); }

  bool on_disk(size_t unit) const { return on_disk_.at(unit); }
  DiskStates* disk() { return disk_.get(); }  // null where nothing is on disk

 private:
  at::Tensor field(size_t unit, size_t index) const;
  void hold_all(bool pinned);

  std::vector<StateFields> fields_;  // of the parts, by unit
  std::vector<bool> on_disk_;
  UnitBuffers states_, gradients_;
  mutable std::vector<Copy> reading_;  // by unit: the last
  std::unique_ptr<DiskStates> disk_;
};

// Pinned host memory for blocks that stay. LibTorch's allocator rounds each size it is asked for up to a power of two, which may
// double what is taken: here blocks lie side by side in few pieces whose sizes are powers of two.
struct PinnedPlan {
  struct Place {
    size_t piece = 0;
    int64_t offset = 0;  // a multiple of 256
  };
  std::vector<int64_t> pieces;  // bytes, powers of two
  std::vector<Place> places;    // of the blocks, in their order
};
// `blocks`: bytes of each, above 0.
PinnedPlan plan_pinned(const std::vector<int64_t>& blocks);

// Memory of these blocks. A piece is given back with the last block in it.
std::vector<c10::DataPtr> pinned_blocks(const std::vector<int64_t>& blocks);

}  // namespace lockstep::engine
