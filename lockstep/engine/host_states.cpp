#include "lockstep/engine/host_states.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

namespace lockstep::engine {
namespace {

int64_t whole_floats(int64_t bytes) { return (bytes + 3) / 4; }

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

HostStates::HostStates(const arch::FlatLayout& layout, const HostStatesOptions& options) {
  std::vector<int64_t> blocks, values;  // elements of each
  std::map<size_t, StateFields> on_disk_units;
  for (const arch::FlatUnit& unit : layout.units) {
    const size_t index = fields_.size();
    const bool copy = !options.compute_copies.empty() && options.compute_copies.at(index);
    const StateFields& fields = fields_.emplace_back(unit.part(), options.slots.at(index), copy);
    blocks.push_back(whole_floats(fields.bytes));
    values.push_back(unit.part());
    on_disk_.push_back(std::ranges::count(options.disk_units, unit.id) > 0);
    if (on_disk_.back()) on_disk_units.emplace(on_disk_.size() - 1, fields);
  }
  const UnitBufferOptions host{.memory = options.memory, .category = MemoryCategory::kHost, .transient = true};
  states_ = UnitBuffers(blocks, host);
  gradients_ = UnitBuffers(values, host);
  reading_.resize(fields_.size());
  if (!on_disk_units.empty()) disk_ = std::make_unique<DiskStates>(on_disk_units, states_, options);
  hold_all(options.pinned);
}

// What stays, as zeros.
void HostStates::hold_all(bool pinned) {
  std::vector<std::pair<UnitBuffers*, size_t>> blocks;
  for (size_t unit = 0; unit < fields_.size(); ++unit) {
    blocks.emplace_back(&gradients_, unit);
    if (!on_disk(unit)) blocks.emplace_back(&states_, unit);
  }
  std::vector<int64_t> bytes;
  for (const auto& [buffers, unit] : blocks) bytes.push_back(static_cast<int64_t>(buffers->unit(unit).nbytes()));
  std::vector<c10::DataPtr> memory = pinned ? pinned_blocks(bytes) : std::vector<c10::DataPtr>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& [buffers, unit] = blocks[i];
    pinned ? buffers->hold_at(unit, std::move(memory[i])) : buffers->hold(unit);
    buffers->unit(unit).zero_();
  }
}

// Blocks are fp32; parts have a multiple of 16 elements, so a field begins on a whole one.
at::Tensor HostStates::field(size_t unit, size_t index) const {
  if (on_disk(unit) && !states_.held(unit)) return disk_->mapped(unit, index);
  const StateFields::Field& wanted = fields_.at(unit).all.at(index);
  const at::Tensor block = states_.unit(unit).narrow(0, whole_floats(wanted.offset), whole_floats(wanted.bytes));
  return wanted.dtype == at::kFloat ? block : block.view(wanted.dtype).narrow(0, 0, wanted.numel);
}

at::Tensor HostStates::value(size_t unit) const {
  reading_.at(unit).wait();
  return field(unit, StateFields::kValues);
}

at::Tensor HostStates::compute(size_t unit) const {
  reading_.at(unit).wait();
  return fetched_from(unit);
}

PinnedPlan plan_pinned(const std::vector<int64_t>& blocks) {
  PinnedPlan plan;
  plan.places.resize(blocks.size());
  std::vector<size_t> left(blocks.size());  // largest first
  std::iota(left.begin(), left.end(), size_t{0});
  std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) { return blocks[a] > blocks[b]; });
  int64_t bytes = 0;
  for (const int64_t block : blocks) bytes += aligned(block);
  while (!left.empty()) {
    // The largest power of two that what is left fills, or the smallest that its largest block fits into.
    const auto largest = static_cast<uint64_t>(aligned(blocks[left.front()]));
    const auto piece = static_cast<int64_t>(std::max(std::bit_floor(static_cast<uint64_t>(bytes)), std::bit_ceil(largest)));
    int64_t used = 0;
    std::erase_if(left, [&](size_t block) {
      const int64_t size = aligned(blocks[block]);
      if (used + size > piece) return false;
      plan.places[block] = {.piece = plan.pieces.size(), .offset = used};
      used += size;
      return true;
    });
    plan.pieces.push_back(piece);
    bytes -= used;
  }
  return plan;
}

std::vector<c10::DataPtr> pinned_blocks(const std::vector<int64_t>& blocks) {
  const PinnedPlan plan = plan_pinned(blocks);
  std::vector<at::Tensor> pieces;
  for (const int64_t bytes : plan.pieces)
    pieces.push_back(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  std::vector<c10::DataPtr> memory;
  for (const PinnedPlan::Place& place : plan.places) {
    const at::Tensor& piece = pieces[place.piece];
    void* block = static_cast<std::byte*>(piece.mutable_data_ptr()) + place.offset;
    memory.emplace_back(block, new at::Tensor(piece), [](void* held) { delete static_cast<at::Tensor*>(held); }, at::kCPU);
  }
  return memory;
}

}  // namespace lockstep::engine
