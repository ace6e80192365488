#include "lockstep/engine/disk_states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::engine {

DiskStates::DiskStates(std::vector<DiskUnit> units, UnitBuffers& blocks, const DiskStatesOptions& options) : blocks_(blocks) {
  std::vector<DiskRegion> regions;
  int64_t largest = 0;
  for (DiskUnit& unit : units) {
    Place place{.unit = std::move(unit), .first_region = regions.size(), .slot = -1, .reading = {}};
    const StateFields& all = place.unit.fields;
    for (size_t field = 0; field < all.size(); ++field)
      regions.push_back({cat(all.name(field), " of ", place.unit.name), all.bytes(field)});
    largest = std::max(largest, all.bytes_before(all.size()));
    const size_t index = place.unit.unit;
    places_.emplace(index, std::move(place));
  }
  tier_ = std::make_shared<DiskTier>(options.folder, options.rank, std::move(regions));
  const MemoryScope scope(options.memory, MemoryCategory::kHost);
  for (at::Tensor& buffer : staging_)
    buffer = at::empty({(largest + 3) / 4}, at::TensorOptions().dtype(at::kFloat).pinned_memory(options.pinned));
}

std::vector<DiskStates::Field> DiskStates::fields(const Place& place, size_t count) const {
  std::vector<Field> found;
  for (size_t field = 0; field < count; ++field)
    found.push_back({.region = place.first_region + field,
                     .offset = place.unit.fields.bytes_before(field),
                     .bytes = place.unit.fields.bytes(field)});
  return found;
}

DiskStates::Place& DiskStates::take_slot(size_t unit) {
  Place& place = places_.at(unit);
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  LOCKSTEP_CHECK(place.slot < 0 && free != taken_.end(), "no buffer for ", place.unit.name);
  *free = true;
  place.slot = static_cast<int>(free - taken_.begin());
  blocks_.hold_at(unit, at::DataPtr(staging_[static_cast<size_t>(place.slot)].data_ptr(), at::kCPU));
  return place;
}

void DiskStates::give_back(Place& place) {
  blocks_.drop(place.unit.unit);
  taken_[static_cast<size_t>(place.slot)] = false;
  place.slot = -1;
  place.reading = {};
}

void DiskStates::fetch(size_t unit) {
  Place& place = take_slot(unit);
  const at::Tensor buffer = staging_[static_cast<size_t>(place.slot)];
  // The copy is made anew at the update.
  const size_t read = place.unit.fields.updated();
  place.reading = queue_.start(cat("states of ", place.unit.name, " from disk"), place.unit.fields.bytes_before(read),
                               [tier = tier_, buffer, fields = fields(place, read)] {
                                 auto* to = static_cast<char*>(buffer.data_ptr());
                                 for (const Field& field : fields) tier->read(field.region, to + field.offset);
                               });
}

void DiskStates::ready(size_t unit) { places_.at(unit).reading.wait(); }

void DiskStates::evict(size_t unit) {
  Place& place = places_.at(unit);
  LOCKSTEP_CHECK(place.slot >= 0, place.unit.name, " is not fetched");
  place.reading.wait();
  const at::Tensor buffer = staging_[static_cast<size_t>(place.slot)];
  const size_t all = place.unit.fields.size();
  queue_.start(cat("states of ", place.unit.name, " to disk"), place.unit.fields.bytes_before(all),
               [tier = tier_, buffer, fields = fields(place, all)] {
                 const auto* from = static_cast<const char*>(buffer.const_data_ptr());
                 for (const Field& field : fields) tier->write(field.region, from + field.offset);
               });
  give_back(place);
}

Copy DiskStates::fetch_parameters(size_t unit, const at::Tensor& to) {
  Place& place = places_.at(unit);
  const std::string what = cat("parameters of ", place.unit.name, " to the device");
  // Behind the read of the buffer; the bf16 copy in it is that of the update to come.
  const bool staged = place.slot >= 0 && !place.unit.fields.has_copy();
  const at::Tensor buffer = staged ? staging_[static_cast<size_t>(place.slot)].narrow(0, 0, place.unit.fields.numel(StateFields::kValues)) : at::Tensor();
  if (staged && to.is_cpu()) return queue_.copy(buffer, to, what);
  const size_t region = place.first_region + place.unit.fields.compute();
  const auto bytes = static_cast<int64_t>(to.nbytes());
  if (to.is_cpu()) return queue_.start(what, bytes, [tier = tier_, region, to] { tier->read(region, to.mutable_data_ptr()); });
  const std::shared_ptr<DeviceCopy> across = queue_.ask(to.device(), Direction::kToDevice);
  const auto body = [tier = tier_, region, buffer, to, across] {
    const at::Tensor host = at::empty(to.sizes(), to.options().device(at::kCPU).pinned_memory(true));
    if (buffer.defined())
      host.copy_(buffer);  // the next unit is read into the buffer behind this, whatever the device does
    else
      tier->read(region, host.mutable_data_ptr());
    across->start(host, to);
  };
  return queue_.start(what, bytes, body, across);
}

void DiskStates::open(size_t unit) {
  queue_.wait();
  Place& place = take_slot(unit);
  auto* to = static_cast<char*>(staging_[static_cast<size_t>(place.slot)].data_ptr());
  for (const Field& field : fields(place, place.unit.fields.size())) {
    if (tier_->written(field.region))
      tier_->read(field.region, to + field.offset);
    else
      std::memset(to + field.offset, 0, static_cast<size_t>(field.bytes));
  }
}

void DiskStates::write(const Place& place, const char* from) const {
  for (const Field& field : fields(place, place.unit.fields.size())) tier_->write(field.region, from + field.offset);
}

void DiskStates::close(size_t unit) {
  Place& place = places_.at(unit);
  write(place, static_cast<const char*>(staging_[static_cast<size_t>(place.slot)].const_data_ptr()));
  give_back(place);
}

at::Tensor DiskStates::mapped(size_t unit, size_t field) {
  queue_.wait();
  const Place& place = places_.at(unit);
  const StateFields& all = place.unit.fields;
  LOCKSTEP_CHECK(field < all.size(), "no such field of ", place.unit.name);
  const std::shared_ptr<void> memory = tier_->map(place.first_region + field);
  return at::from_blob(memory.get(), {all.numel(field)}, [memory](void*) {}, at::TensorOptions().dtype(all.dtype(field)));
}

void DiskStates::accept() {
  for (const auto& [unit, place] : places_)
    for (size_t field = 0; field < place.unit.fields.size(); ++field) tier_->accept(place.first_region + field);
}

void DiskStates::abandon() {
  queue_.wait();
  for (auto& [unit, place] : places_)
    if (place.slot >= 0) give_back(place);
}

}  // namespace lockstep::engine
