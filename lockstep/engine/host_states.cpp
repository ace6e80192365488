#include "lockstep/engine/host_states.h"

#include <algorithm>
#include <utility>

#include "lockstep/engine/pinned_blocks.h"

namespace lockstep::engine {
namespace {

int64_t whole_floats(int64_t bytes) { return (bytes + 3) / 4; }

}  // namespace

arch::FlatLayout layout_of_parts(const arch::FlatLayout& layout, const std::function<int64_t(size_t unit)>& numel) {
  arch::FlatLayout parts;
  for (const arch::FlatUnit& unit : layout.units) {
    const int64_t size = numel(parts.units.size());
    parts.units.push_back({.layer = unit.layer, .begin = parts.numel, .end = parts.numel + size, .slots = {}, .id = unit.id, .group = unit.group});
    parts.numel += size;
  }
  return parts;
}

HostStates::HostStates(const arch::FlatLayout& layout, const HostStatesOptions& options) {
  for (const arch::FlatUnit& unit : layout.units) {
    fields_.emplace_back(unit.part(), options.slots.at(fields_.size()), options.compute_copy);
    on_disk_.push_back(std::count(options.disk_units.begin(), options.disk_units.end(), unit.id) > 0);
  }
  const UnitBufferOptions host{.memory = options.memory, .category = MemoryCategory::kHost, .transient = true};
  const auto block = [&](size_t unit) { return whole_floats(fields_[unit].bytes); };
  states_ = UnitBuffers(layout_of_parts(layout, block), host);
  gradients_ = UnitBuffers(layout_of_parts(layout, [&](size_t unit) { return fields_[unit].all[StateFields::kValues].numel; }), host);
  reading_.resize(fields_.size());
  std::vector<DiskUnit> on_disk_units;
  for (size_t unit = 0; unit < fields_.size(); ++unit)
    if (on_disk(unit)) on_disk_units.push_back({.unit = unit, .name = options.names.at(unit), .fields = fields_[unit]});
  if (!on_disk_units.empty()) disk_ = std::make_unique<DiskStates>(std::move(on_disk_units), states_, options);
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

at::Tensor HostStates::fetched_from(size_t unit) const { return field(unit, fields_.at(unit).compute()); }

HostStates::Open::Open(HostStates* states, size_t unit) : unit_(unit) {
  if (states == nullptr || !states->on_disk(unit)) return;
  disk_ = states->disk();
  disk_->open(unit);
}

HostStates::Open::~Open() noexcept(false) {
  if (disk_ != nullptr && std::uncaught_exceptions() == exceptions_) disk_->close(unit_);
}

void HostStates::zero_gradients() {
  for (size_t unit = 0; unit < fields_.size(); ++unit) gradients_.unit(unit).zero_();
}

}  // namespace lockstep::engine
