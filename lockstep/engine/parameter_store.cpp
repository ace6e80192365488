#include "lockstep/engine/parameter_store.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"

namespace lockstep::engine {
namespace {

// Of all parts side by side.
at::Tensor kept_buffer(const arch::FlatLayout& layout, at::ScalarType dtype, const StoreOptions& options,
                       MemoryCategory category) {
  const MemoryScope scope(options.memory, category);
  return at::zeros({layout.parts}, at::TensorOptions().dtype(dtype).device(options.device));
}

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

at::Tensor kept_slot(int64_t numel, config::Precision dtype, const StoreOptions& options) {
  const MemoryScope scope(options.memory, MemoryCategory::kOptimizer);
  return at::zeros({numel}, at::TensorOptions().dtype(scalar_type(dtype)).device(options.device));
}

// "blocks.3", "embed": what the names of a unit's parameters begin with.
std::vector<std::string> unit_names(const arch::FlatLayout& layout, const std::vector<arch::ParamSpec>& table) {
  std::vector<std::string> names;
  for (const arch::FlatUnit& unit : layout.units) {
    const std::string& name = table.at(static_cast<size_t>(unit.slots.at(0).param)).name;
    const size_t first = name.find('.');
    names.push_back(name.substr(0, name.starts_with("blocks.") ? name.find('.', first + 1) : first));
    if (unit.group != arch::ParameterGroup::kDense) names.back() += ".rows";
  }
  return names;
}

}  // namespace

ParameterStore::ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options)
    : table_(std::move(table)),
      options_(options),
      layout_(arch::flat_layout(table_, {options.shares[0].shards, options.shares[1].shards})),
      places_(table_.size()) {
  for (size_t i = 0; i < layout_.units.size(); ++i) {
    const arch::FlatUnit& unit = layout_.units[i];
    for (const arch::FlatSlot& slot : unit.slots)
      places_[static_cast<size_t>(slot.param)] = {.unit = i, .offset = slot.offset - unit.begin};
    const int shard = options_.share(unit.group).shard;
    slots_.push_back(arch::shard_slots(unit, shard));
    unit_slots_.push_back({.buffers = arch::slot_buffers(table_, unit), .offsets = arch::slot_offsets(table_, unit, shard)});
  }
  for (size_t row = 0; row < table_.size(); ++row) {
    names_[table_[row].name].push_back(static_cast<int>(row));
    if (!table_[row].fuse.empty()) names_[table_[row].fuse].push_back(static_cast<int>(row));
  }
  const auto units = [&](at::ScalarType dtype, MemoryCategory category, bool transient) {
    return UnitBuffers(layout_, {.dtype = dtype,
                                 .device = options_.device,
                                 .memory = options_.memory,
                                 .category = category,
                                 .transient = transient});
  };
  const auto kept = [&](at::ScalarType dtype, MemoryCategory category) {
    return kept_buffer(layout_, dtype, options_, category);
  };
  compute_ = units(options_.dtype, MemoryCategory::kParameters, options_.sharded_parameters || options_.offload_parameters);
  if (options_.sharded_parameters && !options_.offload_parameters)
    compute_kept_ = kept(options_.dtype, MemoryCategory::kParameters);
  if (options_.offload_parameters && options_.shards() > 1)
    parts_ = UnitBuffers(layout_of_parts(layout_, [&](size_t unit) { return layout_.units[unit].part(); }),
                         {.dtype = options_.dtype,
                          .device = options_.device,
                          .memory = options_.memory,
                          .category = MemoryCategory::kParameters,
                          .transient = true});
  if (!options_.training) return;
  grad_ = units(at::kFloat, MemoryCategory::kGradients, options_.transient_gradients);
  if (options_.offload_optimizer) {
    std::vector<std::vector<arch::SlotBuffer>> buffers;
    for (const UnitSlots& of_unit : unit_slots_) buffers.push_back(of_unit.buffers);
    host_ = std::make_unique<HostStates>(
        layout_, HostStatesOptions{.slots = std::move(buffers),
                                   .compute_copy = options_.offload_parameters && options_.dtype != at::kFloat,
                                   .disk_units = options_.disk_units,
                                   .names = unit_names(layout_, table_),
                                   .disk_path = options_.disk_path,
                                   .rank = options_.rank,
                                   .pinned = options_.device.is_cuda(),
                                   .memory = options_.memory});
    return;
  }
  if (options_.transient_gradients) grad_kept_ = kept(at::kFloat, MemoryCategory::kGradients);
  if (!options_.owns_optimizer) return;
  slots_kept_ = kept_slots();
  if (!in_place()) master_ = kept(at::kFloat, MemoryCategory::kOptimizer);
}

// Slot i of all units side by side.
std::vector<at::Tensor> ParameterStore::kept_slots() {
  std::vector<int64_t> numel;
  std::vector<config::Precision> dtypes;
  for (UnitSlots& of_unit : unit_slots_)
    for (size_t i = 0; i < of_unit.buffers.size(); ++i) {
      const arch::SlotBuffer& buffer = of_unit.buffers[i];
      if (i == numel.size()) {
        numel.push_back(0);
        dtypes.push_back(buffer.dtype);
      }
      LOCKSTEP_CHECK(dtypes[i] == buffer.dtype, "slot ", i, " has two types");
      of_unit.begin.push_back(numel[i]);
      numel[i] += buffer.numel;
    }
  std::vector<at::Tensor> kept;
  for (size_t i = 0; i < numel.size(); ++i) kept.push_back(kept_slot(numel[i], dtypes[i], options_));
  return kept;
}

at::Tensor ParameterStore::view(const UnitBuffers& buffers, int param) const {
  if (!buffers.defined()) return {};
  const arch::ParamSpec& spec = table_.at(static_cast<size_t>(param));
  const Place& place = places_[static_cast<size_t>(param)];
  return buffers.unit(place.unit).narrow(0, place.offset, spec.local_numel()).view(spec.local_shape);
}

// Rows of one length, side by side in memory: one matrix over all members.
nn::Parameter ParameterStore::fused(const std::string& name, const std::vector<int>& members) const {
  const Place& first = places_[static_cast<size_t>(members[0])];
  std::vector<int64_t> shape = table_[static_cast<size_t>(members[0])].local_shape;
  int64_t numel = 0;
  shape[0] = 0;
  for (const int member : members) {
    const arch::ParamSpec& spec = table_[static_cast<size_t>(member)];
    LOCKSTEP_CHECK_EQ(places_[static_cast<size_t>(member)].offset, first.offset + numel, "rows of ", name,
                      " are not side by side");
    shape[0] += spec.local_shape[0];
    numel += spec.local_numel();
  }
  const auto matrix = [&](const UnitBuffers& buffers) {
    return buffers.defined() ? buffers.unit(first.unit).narrow(0, first.offset, numel).view(shape) : at::Tensor();
  };
  return {matrix(compute_), matrix(grad_)};
}

nn::Parameter ParameterStore::parameter(std::string_view name) {
  const auto found = names_.find(name);
  LOCKSTEP_CHECK(found != names_.end(), "no parameter named ", name);
  if (found->second.size() > 1) return fused(found->first, found->second);
  return {view(compute_, found->second[0]), view(grad_, found->second[0])};
}

// A compute copy that is whole is drawn whole: other ranks' parts of it too.
void ParameterStore::initialize(uint64_t seed) {
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    const HostStates::Open open(host_.get(), unit);
    const at::Tensor values = value_part(unit);
    for (const arch::ShardSlot& slot : slots_[unit])
      draw_into(table_[static_cast<size_t>(slot.param)], seed, slot.begin, values.narrow(0, slot.offset, slot.numel));
  }
  refresh_compute();
  if (compute_.transient() || options_.shards() == 1) return;
  for (size_t row = 0; row < table_.size(); ++row)
    draw_into(table_[row], seed, 0, view(compute_, static_cast<int>(row)).flatten());
}

at::Tensor ParameterStore::part(const at::Tensor& kept, size_t unit) const {
  const arch::FlatUnit& place = layout_.units.at(unit);
  return kept.narrow(0, place.part_begin, place.part());
}

at::Tensor ParameterStore::part_of(size_t unit, const at::Tensor& whole) const {
  const arch::FlatUnit& place = layout_.units.at(unit);
  return whole.narrow(0, options_.share(place.group).shard * place.part(), place.part());
}

at::Tensor ParameterStore::compute_part(size_t unit) const {
  if (parts_.defined()) return parts_.unit(unit);
  if (compute_kept_.defined()) return part(compute_kept_, unit);
  return part_of(unit, compute_.unit(unit));
}

at::Tensor ParameterStore::value_part(size_t unit) const {
  if (host_) return host_->value(unit);
  return master_.defined() ? part(master_, unit) : compute_part(unit);
}

at::Tensor ParameterStore::grad_part(size_t unit) const {
  if (host_) return host_->gradient(unit);
  if (grad_kept_.defined()) return part(grad_kept_, unit);
  return part_of(unit, grad_.unit(unit));
}

at::Tensor ParameterStore::state_part(size_t unit, StateKind kind) const {
  if (kind == StateKind::kMaster) return value_part(unit);
  if (kind == StateKind::kParameter) return options_.offload_parameters ? host_->compute(unit) : compute_part(unit);
  at::Tensor all;
  bool everywhere = true;
  for (size_t piece = 0; piece < slots_[unit].size(); ++piece) {
    const arch::ShardSlot& place = slots_[unit][piece];
    const std::optional<size_t> index = slot_of(table_[static_cast<size_t>(place.param)], kind);
    everywhere = everywhere && index && unit_slots_[unit].offsets[piece][*index] == place.offset;
  }
  const int64_t size = layout_.units.at(unit).part();
  for (size_t piece = 0; piece < slots_[unit].size(); ++piece) {
    const arch::ShardSlot& place = slots_[unit][piece];
    const std::optional<size_t> index = slot_of(table_[static_cast<size_t>(place.param)], kind);
    if (!index) continue;
    if (everywhere && unit_slots_[unit].buffers[*index].numel == size) return slot_buffer(unit, *index);
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
  const UnitSlots& of_unit = unit_slots_.at(unit);
  return host_ ? host_->slot(unit, index) : slots_kept_.at(index).narrow(0, of_unit.begin[index], of_unit.buffers[index].numel);
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

at::Tensor ParameterStore::value(int param) const {
  if (!owns_values() || options_.shards() > 1) return view(compute_, param);
  const arch::ParamSpec& spec = table_.at(static_cast<size_t>(param));
  const Place& place = places_[static_cast<size_t>(param)];
  return value_part(place.unit).narrow(0, place.offset, spec.local_numel()).view(spec.local_shape);
}

at::Tensor ParameterStore::grad(int param) const { return view(grad_, param); }

// With its rows and columns where it is a whole matrix.
optim::Parameter ParameterStore::updated(size_t unit, size_t piece, const UnitState& state) const {
  const arch::ShardSlot& place = slots_.at(unit)[piece];
  const arch::ParamSpec& spec = table_[static_cast<size_t>(place.param)];
  const bool matrix = spec.update.optimizer->whole_matrix && !arch::is_scattered_matrix(spec, options_.shards());
  const auto shaped = [&](const at::Tensor& flat) { return matrix ? flat.view(spec.local_shape) : flat; };
  const auto part = [&](const at::Tensor& flat) { return shaped(flat.narrow(0, place.offset, place.numel)); };
  optim::Parameter parameter{.value = part(state.value),
                             .grad = part(state.grad),
                             .copy = state.copy.scalar_type() == at::kFloat ? at::Tensor() : part(state.copy),
                             .decay = spec.weight_decay,
                             .rule = spec.update};
  for (size_t i = 0; i < spec.update.optimizer->slots.size(); ++i)
    parameter.slots.push_back(shaped(slot_piece(unit, piece, i)));
  return parameter;
}

// What is offloaded gets its copy where it lies; on the device it is fetched.
ParameterStore::UnitState ParameterStore::unit_state(size_t unit) const {
  const at::Tensor value = value_part(unit);
  return {.value = value,
          .grad = grad_part(unit),
          .copy = !host_ ? compute_part(unit) : options_.offload_parameters ? host_->compute(unit) : value};
}

std::vector<optim::Parameter> ParameterStore::updated_parameters(size_t unit) const {
  const UnitState state = unit_state(unit);
  std::vector<optim::Parameter> parameters;
  for (size_t piece = 0; piece < slots_.at(unit).size(); ++piece)
    if (!arch::is_scattered_matrix(table_[static_cast<size_t>(slots_[unit][piece].param)], options_.shards()))
      parameters.push_back(updated(unit, piece, state));
  return parameters;
}

std::vector<ParameterStore::MatrixPiece> ParameterStore::matrix_pieces(size_t unit) const {
  const UnitState state = unit_state(unit);
  std::vector<MatrixPiece> pieces;
  for (size_t piece = 0; piece < slots_.at(unit).size(); ++piece)
    if (arch::is_scattered_matrix(table_[static_cast<size_t>(slots_[unit][piece].param)], options_.shards()))
      pieces.push_back({.place = slots_[unit][piece], .parameter = updated(unit, piece, state)});
  return pieces;
}

void ParameterStore::zero_grad() {
  if (host_) return host_->zero_gradients();
  if (grad_kept_.defined())
    grad_kept_.zero_();
  else
    grad_.slice(0, layout_.numel).zero_();
}

void ParameterStore::refresh_compute() {
  if (!owns_values()) return;
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    const HostStates::Open open(host_.get(), unit);
    const at::Tensor copy = state_part(unit, StateKind::kParameter);
    if (!copy.is_alias_of(value_part(unit)) || copy.scalar_type() != at::kFloat) copy.copy_(value_part(unit));
  }
}

// In fp32 a checkpoint has the values once, as parameters: where both are kept, they were read into the compute copy.
void ParameterStore::loaded() {
  if (host_) host_->accept();
  if (!host_ || options_.dtype != at::kFloat || options_.offload_parameters) return refresh_compute();
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    const HostStates::Open open(host_.get(), unit);
    value_part(unit).copy_(compute_part(unit));
  }
}

}  // namespace lockstep::engine
