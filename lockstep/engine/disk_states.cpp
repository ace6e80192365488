#include "lockstep/engine/disk_states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

at::ScalarType scalar_type(config::Precision precision) {
  return precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

StateFields::StateFields(int64_t numel, const std::vector<arch::SlotBuffer>& slots, bool compute_copy) {
  const auto add = [this](std::string name, at::ScalarType dtype, int64_t size) {
    const int64_t held = size * static_cast<int64_t>(c10::elementSize(dtype));
    all.push_back({.name = std::move(name), .dtype = dtype, .numel = size, .offset = bytes, .bytes = held});
    bytes += held;
  };
  add("values", at::kFloat, numel);
  for (const arch::SlotBuffer& slot : slots) add(cat(slot.text, "s"), scalar_type(slot.dtype), slot.numel);
  updated = all.size();
  if (compute_copy) add("bf16 copy", at::kBFloat16, numel);
}

DiskStates::DiskStates(const std::map<size_t, StateFields>& units, UnitBuffers& blocks, const HostStatesOptions& options)
    : blocks_(blocks) {
  std::vector<DiskRegion> regions;
  int64_t largest = 0;
  for (const auto& [unit, fields] : units) {
    const std::string& name = options.names.at(unit);
    places_.emplace(unit, Place{.name = name, .fields = fields, .first_region = regions.size()});
    for (const StateFields::Field& field : fields.all) regions.push_back({cat(field.name, " of ", name), field.bytes});
    largest = std::max(largest, fields.bytes);
  }
  tier_ = std::make_shared<DiskTier>(options.disk_path, options.rank, std::move(regions));
  const MemoryScope scope(options.memory, MemoryCategory::kHost);
  for (int i = 0; i < 2; ++i)
    free_.push_back(at::empty({(largest + 3) / 4}, at::TensorOptions().dtype(at::kFloat).pinned_memory(options.pinned)));
}

DiskStates::Place& DiskStates::take_buffer(size_t unit) {
  Place& place = places_.at(unit);
  LOCKSTEP_CHECK(!place.buffer.defined() && !free_.empty(), "no buffer for ", place.name);
  place.buffer = free_.back();
  free_.pop_back();
  blocks_.hold_at(unit, at::DataPtr(place.buffer.data_ptr(), at::kCPU));
  return place;
}

void DiskStates::give_back(size_t unit) {
  Place& place = places_.at(unit);
  blocks_.drop(unit);
  free_.push_back(std::exchange(place.buffer, {}));
  place.reading = {};
}

std::function<void()> DiskStates::read(const Place& place, size_t fields) const {
  return [tier = tier_, to = place.buffer, all = place.fields.all, first = place.first_region, fields] {
    for (size_t i = 0; i < fields; ++i) tier->read(first + i, static_cast<char*>(to.data_ptr()) + all[i].offset);
  };
}

std::function<void()> DiskStates::write(const Place& place) const {
  return [tier = tier_, from = place.buffer, all = place.fields.all, first = place.first_region] {
    for (size_t i = 0; i < all.size(); ++i) tier->write(first + i, static_cast<const char*>(from.const_data_ptr()) + all[i].offset);
  };
}

void DiskStates::fetch(size_t unit) {
  Place& place = take_buffer(unit);
  const StateFields& fields = place.fields;
  // The copy is made anew at the update.
  const int64_t bytes = fields.updated < fields.all.size() ? fields.all[fields.updated].offset : fields.bytes;
  place.reading = queue_.start(cat("states of ", place.name, " from disk"), bytes, read(place, fields.updated));
}

void DiskStates::evict(size_t unit) {
  Place& place = places_.at(unit);
  LOCKSTEP_CHECK(place.buffer.defined(), place.name, " is not fetched");
  place.reading.wait();
  queue_.start(cat("states of ", place.name, " to disk"), place.fields.bytes, write(place));
  give_back(unit);
}

Copy DiskStates::fetch_parameters(size_t unit, const at::Tensor& to) {
  const Place& place = places_.at(unit);
  const StateFields& fields = place.fields;
  const std::string what = cat("parameters of ", place.name, " to the device");
  // Behind the read of the buffer, and before the next unit is read into it; a bf16 copy in it is that of the update to come.
  if (place.buffer.defined() && fields.compute() == StateFields::kValues) {
    const at::Tensor values = place.buffer.narrow(0, 0, fields.all[StateFields::kValues].numel);
    if (to.is_cpu()) return queue_.copy(values, to, what);
    return queue_.fill(to, what, [values](const at::Tensor& host) { host.copy_(values); });
  }
  const size_t region = place.first_region + fields.compute();
  return queue_.fill(to, what, [tier = tier_, region](const at::Tensor& host) { tier->read(region, host.mutable_data_ptr()); });
}

void DiskStates::open(size_t unit) {
  queue_.wait();
  const Place& place = take_buffer(unit);
  if (tier_->written(place.first_region))
    read(place, place.fields.all.size())();
  else
    place.buffer.zero_();
}

void DiskStates::close(size_t unit) {
  write(places_.at(unit))();
  give_back(unit);
}

at::Tensor DiskStates::mapped(size_t unit, size_t field) {
  queue_.wait();
  const Place& place = places_.at(unit);
  const StateFields::Field& wanted = place.fields.all.at(field);
  const std::shared_ptr<void> memory = tier_->map(place.first_region + field);
  return at::from_blob(memory.get(), {wanted.numel}, [memory](void*) {}, at::TensorOptions().dtype(wanted.dtype));
}

void DiskStates::abandon() {
  queue_.wait();
  for (auto& [unit, place] : places_)
    if (place.buffer.defined()) give_back(unit);
}

}  // namespace lockstep::engine
