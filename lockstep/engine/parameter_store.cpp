#include "lockstep/engine/parameter_store.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"
#include "lockstep/program/placement.h"

namespace lockstep::engine {
namespace {

// Initial values of elements [begin, begin + out.size()) of this rank's piece of the parameter. A piece that is cut along
// dim 1 lies row by row in the global one.
void draw(const arch::ParamSpec& spec, uint64_t seed, int64_t begin, std::span<float> out) {
  const bool columns = spec.cut == arch::TensorCut::kColumns;
  const int64_t row = spec.numel() / spec.shape[0];
  const int64_t width = columns ? spec.local_shape[1] : spec.local_numel();
  const auto end = begin + static_cast<int64_t>(out.size());
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(end, (at / width + 1) * width) - at;
    const int64_t global =
        columns ? at / width * spec.shape[1] + spec.local_offset[1] + at % width : spec.local_offset[0] * row + at;
    model::initial_values(spec, seed, global, out.subspan(static_cast<size_t>(at - begin), static_cast<size_t>(count)));
    at += count;
  }
}

void draw_into(const arch::ParamSpec& spec, uint64_t seed, int64_t begin, const at::Tensor& target) {
  constexpr int64_t kGrain = 1 << 16;
  const bool in_place = target.is_cpu() && target.scalar_type() == at::kFloat;
  const at::Tensor values = in_place ? target : at::empty({target.numel()}, at::kFloat);
  float* data = values.data_ptr<float>();
  at::parallel_for(0, target.numel(), kGrain, [&](int64_t first, int64_t last) {
    draw(spec, seed, begin + first, {data + first, static_cast<size_t>(last - first)});
  });
  if (!in_place) target.copy_(values);
}

}  // namespace

ParameterStore::ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options)
    : table_(std::move(table)),
      options_(options),
      layout_(options.layout.flat_layout(table_)),
      places_(table_.size()) {
  std::vector<int64_t> whole, parts;  // elements of each unit
  for (size_t i = 0; i < layout_.units.size(); ++i) {
    const arch::FlatUnit& unit = layout_.units[i];
    whole.push_back(unit.numel());
    parts.push_back(unit.part());
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
  const program::Layout& layout = options_.layout;
  compute_ = buffers(whole, dtype(), MemoryCategory::kParameters, layout.transient_parameters());
  if (layout.transient_parameters() && layout.shards() > 1)
    parts_ = buffers(parts, dtype(), MemoryCategory::kParameters, layout.offload.parameters);
  if (!options_.training) return;
  grad_ = buffers(whole, at::kFloat, MemoryCategory::kGradients, layout.transient_gradients());
  if (layout.offload.optimizer) {
    HostStatesOptions host{.compute_copy = layout.offload.parameters && dtype() != at::kFloat,
                           .disk_units = program::host_plan(layout, options_.rank).disk_units,
                           .disk_path = options_.disk_path,
                           .rank = options_.rank,
                           .pinned = options_.device.is_cuda(),
                           .memory = options_.memory};
    for (const UnitSlots& of_unit : unit_slots_) host.slots.push_back(of_unit.buffers);
    for (const arch::FlatUnit& unit : layout_.units)
      host.names.push_back(arch::layer_spec(layout.model, unit.layer).name + (unit.group == arch::ParameterGroup::kDense ? "" : ".rows"));
    host_ = std::make_unique<HostStates>(layout_, host);
    return;
  }
  if (grad_.transient()) grad_parts_ = buffers(parts, at::kFloat, MemoryCategory::kGradients, false);
  if (!owns_optimizer()) return;
  keep_slots();
  if (dtype() != at::kFloat) master_ = buffers(parts, at::kFloat, MemoryCategory::kOptimizer, false);
}

UnitBuffers ParameterStore::buffers(const std::vector<int64_t>& sizes, at::ScalarType dtype, MemoryCategory category, bool transient) const {
  return {sizes, {.dtype = dtype, .device = options_.device, .memory = options_.memory, .category = category, .transient = transient}};
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
    slots_kept_.push_back(buffers(sizes, scalar_type(dtypes[i]), MemoryCategory::kOptimizer, false));
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

// A compute copy that is whole is drawn whole: other ranks' parts of it too.
void ParameterStore::initialize(uint64_t seed) {
  change_units([&](size_t unit) {
    const at::Tensor values = value_part(unit);
    for (const arch::ShardSlot& slot : slots_[unit])
      draw_into(table_[static_cast<size_t>(slot.param)], seed, slot.begin, values.narrow(0, slot.offset, slot.numel));
  });
  refresh_compute();
  if (compute_.transient() || options_.layout.shards() == 1) return;
  for (size_t row = 0; row < table_.size(); ++row)
    draw_into(table_[row], seed, 0, view(compute_, {static_cast<int>(row)}).flatten());
}

at::Tensor ParameterStore::part_of(size_t unit, const at::Tensor& whole) const {
  const arch::FlatUnit& place = layout_.units.at(unit);
  return whole.narrow(0, options_.layout.shard(options_.rank, place.group) * place.part(), place.part());
}

at::Tensor ParameterStore::compute_part(size_t unit) const {
  return parts_.defined() ? parts_.unit(unit) : part_of(unit, compute_.unit(unit));
}

at::Tensor ParameterStore::value_part(size_t unit) const {
  if (host_) return host_->value(unit);
  return master_.defined() ? master_.unit(unit) : compute_part(unit);
}

at::Tensor ParameterStore::grad_part(size_t unit) const {
  if (host_) return host_->gradient(unit);
  return grad_parts_.defined() ? grad_parts_.unit(unit) : part_of(unit, grad_.unit(unit));
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
  const int shards = options_.layout.shards();
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

void ParameterStore::refresh_compute() {
  if (!owns_values()) return;
  change_units([this](size_t unit) {
    const at::Tensor copy = state_part(unit, StateKind::kParameter);
    if (!copy.is_alias_of(value_part(unit)) || copy.scalar_type() != at::kFloat) copy.copy_(value_part(unit));
  });
}

// In fp32 a checkpoint has the values once, as parameters: where both are kept, they were read into the compute copy.
void ParameterStore::loaded() {
  if (host_ && host_->disk()) host_->disk()->accept();
  if (!host_ || dtype() != at::kFloat || options_.layout.offload.parameters) return refresh_compute();
  change_units([this](size_t unit) { value_part(unit).copy_(compute_part(unit)); });
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
