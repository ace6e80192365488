#include "lockstep/engine/parameter_store.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/program/placement.h"

namespace lockstep::engine {
namespace {

// Of the name of a layer's unit, on disk.
const char* suffix_of(arch::ParameterGroup group) {
  switch (group) {
    case arch::ParameterGroup::kDense:
      return "";
    case arch::ParameterGroup::kRows:
      return ".rows";
    case arch::ParameterGroup::kExperts:
      return ".experts";
    case arch::ParameterGroup::kFp32:
      return ".fp32";
  }
  throw InternalError("no such group of parameters");
}

}  // namespace

ParameterStore::ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options)
    : table_(std::move(table)),
      options_(options),
      layout_(options.layout.flat_layout(table_)),
      places_(table_.size()) {
  std::vector<int64_t> whole, parts;  // elements of each unit
  std::vector<int64_t> beside;        // of parts that are kept beside the unit
  std::vector<bool> parameters_stay, gradients_stay;
  const program::Layout& layout = options_.layout;
  for (size_t i = 0; i < layout_.units.size(); ++i) {
    const arch::FlatUnit& unit = layout_.units[i];
    whole.push_back(unit.numel());
    parts.push_back(unit.part());
    parameters_stay.push_back(!layout.transient_parameters(unit.group));
    gradients_stay.push_back(!layout.transient_gradients(unit.group));
    beside.push_back(parameters_stay.back() || unit.shards == 1 ? 0 : unit.part());
    for (const arch::FlatSlot& slot : unit.slots)
      places_[static_cast<size_t>(slot.param)] = {.unit = i, .offset = slot.offset - unit.begin};
    const int shard = options_.layout.shard(options_.rank, unit.group);
    slots_.push_back(arch::shard_slots(unit, shard));
    unit_slots_.push_back({.buffers = arch::slot_buffers(table_, unit), .offsets = arch::slot_offsets(table_, unit, shard)});
  }
  for (size_t row = 0; row < table_.size(); ++row) {
    names_[table_[row].name].push_back(static_cast<int>(row));
    if (!table_[row].fuse.empty()) names_[table_[row].fuse].push_back(static_cast<int>(row));
  }
  compute_ = buffers(whole, dtype(), MemoryCategory::kParameters, parameters_stay);
  if (std::ranges::any_of(beside, [](int64_t numel) { return numel > 0; }))
    parts_ = buffers(beside, dtype(), MemoryCategory::kParameters, std::vector<bool>(beside.size(), !layout.offload.parameters));
  if (!options_.training) return;
  grad_ = buffers(whole, at::kFloat, MemoryCategory::kGradients, gradients_stay);
  if (layout.offload.optimizer) {
    HostStatesOptions host{.disk_units = program::host_plan(layout, options_.rank).disk_units,
                           .disk_path = options_.disk_path,
                           .rank = options_.rank,
                           .pinned = options_.device.is_cuda(),
                           .memory = options_.memory};
    for (const UnitSlots& of_unit : unit_slots_) host.slots.push_back(of_unit.buffers);
    for (size_t unit = 0; unit < parts.size(); ++unit)
      host.compute_copies.push_back(layout.offload.parameters && dtype(unit) != at::kFloat);
    for (const arch::FlatUnit& unit : layout_.units)
      host.names.push_back(arch::layer_spec(layout.model, unit.layer).name + suffix_of(unit.group));
    host_ = std::make_unique<HostStates>(layout_, host);
    return;
  }
  for (size_t unit = 0; unit < parts.size(); ++unit) beside[unit] = gradients_stay[unit] ? 0 : parts[unit];
  if (std::ranges::any_of(beside, [](int64_t numel) { return numel > 0; }))
    grad_parts_ = buffers(beside, at::kFloat, MemoryCategory::kGradients);
  if (!owns_optimizer()) return;
  keep_slots();
  if (dtype() == at::kFloat) return;
  for (size_t unit = 0; unit < parts.size(); ++unit)
    if (dtype(unit) == at::kFloat) parts[unit] = 0;
  master_ = buffers(parts, at::kFloat, MemoryCategory::kOptimizer);
}

UnitBuffers ParameterStore::buffers(const std::vector<int64_t>& sizes, at::ScalarType dtype, MemoryCategory category,
                                    const std::vector<bool>& stay) const {
  std::vector<bool> fp32;
  for (size_t unit = 0; category == MemoryCategory::kParameters && dtype != at::kFloat && unit < sizes.size(); ++unit)
    fp32.push_back(this->dtype(unit) == at::kFloat);
  return {sizes, {.dtype = dtype,
                  .device = options_.device,
                  .memory = options_.memory,
                  .category = category,
                  .transient = std::ranges::find(stay, false) != stay.end(),
                  .stays = stay,
                  .fp32 = std::move(fp32)}};
}

void ParameterStore::keep_slots() {
  std::vector<config::Precision> dtypes;
  for (const UnitSlots& of_unit : unit_slots_)
    for (size_t i = 0; i < of_unit.buffers.size(); ++i) {
      if (i == dtypes.size()) dtypes.push_back(of_unit.buffers[i].dtype);
      LOCKSTEP_CHECK(dtypes[i] == of_unit.buffers[i].dtype, "slot ", i, " has two types");
    }
  for (size_t i = 0; i < dtypes.size(); ++i) {
    std::vector<int64_t> sizes;
    for (const UnitSlots& of_unit : unit_slots_) sizes.push_back(i < of_unit.buffers.size() ? of_unit.buffers[i].numel : 0);
    slots_kept_.push_back(buffers(sizes, scalar_type(dtypes[i]), MemoryCategory::kOptimizer));
  }
}

// Several are rows of one length, side by side in memory: one matrix over all members.
at::Tensor ParameterStore::view(const UnitBuffers& buffers, const std::vector<int>& members) const {
  if (!buffers.defined()) return {};
  const Place& first = places_.at(static_cast<size_t>(members[0]));
  std::vector<int64_t> shape = table_[static_cast<size_t>(members[0])].local_shape;
  int64_t numel = 0;
  shape[0] = 0;
  for (const int member : members) {
    const arch::ParamSpec& spec = table_[static_cast<size_t>(member)];
    LOCKSTEP_CHECK_EQ(places_[static_cast<size_t>(member)].offset, first.offset + numel, "rows of ", spec.fuse,
                      " are not side by side");
    shape[0] += spec.local_shape[0];
    numel += spec.local_numel();
  }
  return buffers.unit(first.unit).narrow(0, first.offset, numel).view(shape);
}

nn::Parameter ParameterStore::parameter(std::string_view name) {
  const auto found = names_.find(name);
  LOCKSTEP_CHECK(found != names_.end(), "no parameter named ", name);
  return {view(compute_, found->second), view(grad_, found->second)};
}

at::Tensor ParameterStore::part_of(size_t unit, const at::Tensor& whole) const {
  const arch::FlatUnit& place = layout_.units.at(unit);
  return whole.narrow(0, options_.layout.shard(options_.rank, place.group) * place.part(), place.part());
}

at::Tensor ParameterStore::compute_part(size_t unit) const {
  return part_beside(unit) ? parts_.unit(unit) : part_of(unit, compute_.unit(unit));
}

at::Tensor ParameterStore::value_part(size_t unit) const {
  if (host_) return host_->value(unit);
  return has_master(unit) ? master_.unit(unit) : compute_part(unit);
}

at::Tensor ParameterStore::grad_part(size_t unit) const {
  if (host_) return host_->gradient(unit);
  return grad_.transient(unit) ? grad_parts_.unit(unit) : part_of(unit, grad_.unit(unit));
}

at::Tensor ParameterStore::state_part(size_t unit, StateKind kind) const {
  if (kind == StateKind::kMaster) return value_part(unit);
  if (kind == StateKind::kParameter) return options_.layout.offload.parameters ? host_->compute(unit) : compute_part(unit);
  at::Tensor all;
  const int64_t size = layout_.units.at(unit).part();
  for (size_t piece = 0; piece < slots_[unit].size(); ++piece) {
    const arch::ShardSlot& place = slots_[unit][piece];
    const std::optional<size_t> index = slot_of(table_[static_cast<size_t>(place.param)], kind);
    if (!index) continue;
    const at::Tensor values = slot_piece(unit, piece, *index);
    if (!all.defined()) all = at::zeros({size}, values.options());
    all.narrow(0, place.offset, place.numel).copy_(values);
  }
  return all.defined() ? all : at::zeros({size}, at::TensorOptions().device(host_ ? at::Device(at::kCPU) : options_.device));
}

std::optional<size_t> ParameterStore::slot_of(const arch::ParamSpec& spec, StateKind kind) {
  const std::vector<arch::StateSlot>& slots = spec.update.optimizer->slots;
  const auto found = std::ranges::find(slots, kind.key, &arch::StateSlot::name);
  return found == slots.end() ? std::nullopt : std::optional(static_cast<size_t>(found - slots.begin()));
}

at::Tensor ParameterStore::slot_buffer(size_t unit, size_t index) const {
  LOCKSTEP_CHECK(owns_optimizer(), "this rank holds no optimizer state");
  return host_ ? host_->slot(unit, index) : slots_kept_.at(index).unit(unit);
}

at::Tensor ParameterStore::slot_piece(size_t unit, size_t piece, size_t index) const {
  return slot_buffer(unit, index).narrow(0, unit_slots_[unit].offsets[piece][index], slots_[unit][piece].numel);
}

std::vector<ParameterStore::Piece> ParameterStore::gradient_pieces() const {
  std::vector<Piece> pieces;
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    const at::Tensor gradients = grad_part(unit);
    for (const arch::ShardSlot& slot : slots_[unit])
      pieces.push_back({.param = slot.param, .values = gradients.narrow(0, slot.offset, slot.numel)});
  }
  std::ranges::stable_sort(pieces, {}, &Piece::param);  // units of several groups are not in its order
  return pieces;
}

std::vector<ParameterStore::Updated> ParameterStore::updated(size_t unit, bool scattered) const {
  const at::Tensor value = value_part(unit), grad = grad_part(unit);
  // What is offloaded gets its copy where it lies; on the device it is fetched.
  const at::Tensor copy = !host_ ? compute_part(unit) : options_.layout.offload.parameters ? host_->compute(unit) : value;
  const int shards = layout_.units[unit].shards;
  std::vector<Updated> all;
  for (size_t piece = 0; piece < slots_.at(unit).size(); ++piece) {
    const arch::ShardSlot& place = slots_[unit][piece];
    const arch::ParamSpec& spec = table_[static_cast<size_t>(place.param)];
    if (arch::is_scattered_matrix(spec, shards) != scattered) continue;
    const bool matrix = spec.update.optimizer->whole_matrix && !scattered;
    const auto shaped = [&](const at::Tensor& flat) { return matrix ? flat.view(spec.local_shape) : flat; };
    const auto part = [&](const at::Tensor& flat) { return shaped(flat.narrow(0, place.offset, place.numel)); };
    optim::Parameter parameter{.value = part(value),
                               .grad = part(grad),
                               .copy = copy.scalar_type() == at::kFloat ? at::Tensor() : part(copy),
                               .decay = spec.weight_decay,
                               .rule = spec.update};
    for (size_t i = 0; i < spec.update.optimizer->slots.size(); ++i)
      parameter.slots.push_back(shaped(slot_piece(unit, piece, i)));
    all.push_back({.place = place, .parameter = std::move(parameter)});
  }
  return all;
}

void ParameterStore::refresh(size_t unit) {
  const at::Tensor copy = state_part(unit, StateKind::kParameter);
  if (!copy.is_alias_of(value_part(unit)) || copy.scalar_type() != at::kFloat) copy.copy_(value_part(unit));
}

void ParameterStore::refresh_compute() {
  if (owns_values()) change_units([this](size_t unit) { refresh(unit); });
}

// What is fp32 a checkpoint has once, as parameters: where both are kept, they were read into the compute copy.
void ParameterStore::loaded() {
  if (host_ && host_->disk()) host_->disk()->accept();
  if (!host_ || options_.layout.offload.parameters) return refresh_compute();
  change_units([this](size_t unit) { dtype(unit) == at::kFloat ? void(value_part(unit).copy_(compute_part(unit))) : refresh(unit); });
}

void ParameterStore::change_units(const std::function<void(size_t unit)>& change) {
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    DiskStates* disk = host_ && host_->on_disk(unit) ? host_->disk() : nullptr;
    if (disk) disk->open(unit);
    change(unit);
    if (disk) disk->close(unit);
  }
}

}  // namespace lockstep::engine
