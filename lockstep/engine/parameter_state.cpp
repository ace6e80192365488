// What checkpoints see of a store.
#include "lockstep/engine/parameter_store.h"

namespace lockstep::engine {
namespace {

// Which replica a tensor is, and of how many. Tied parameters lie on two pipeline ranks.
struct Replica {
  int index = 0, count = 1;
};
Replica replica_of(const arch::ParamSpec& spec, Replica data, const StoreOptions& options) {
  const bool tied = spec.layer == 0;
  const int copies = tied ? options.tied_copies : 1, copy = tied ? options.tied_copy : 0;
  return {.index = (copy * data.count + data.index) * spec.copies + spec.copy, .count = copies * data.count * spec.copies};
}

}  // namespace

// Every parameter as one tensor: views into a compute copy that this rank has whole.
void ParameterStore::add_whole(std::vector<StateTensor>& state) const {
  for (int row = 0; row < static_cast<int>(table_.size()); ++row) {
    const arch::ParamSpec& spec = table_[static_cast<size_t>(row)];
    const GroupShare& share = options_.share(spec.group);
    const Replica replica = replica_of(spec, {share.replica, share.num_replicas}, options_);
    state.push_back({.name = spec.name,
                     .kind = StateKind::kParameter,
                     .global_shape = spec.shape,
                     .offset = spec.local_offset,
                     .local = view(compute_, row),
                     .replica = replica.index,
                     .num_replicas = replica.count});
  }
}

// A part begins and ends inside rows: of a parameter it holds up to three rectangles.
void ParameterStore::add_parts(StateKind kind, std::vector<StateTensor>& state) const {
  // A parameter server's state lives on the server alone: it is its own only replica.
  const bool replicated = !options_.sole_owner || kind == StateKind::kParameter;
  const bool of_slot = kind != StateKind::kParameter && kind != StateKind::kMaster;
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    const GroupShare& share = options_.share(layout_.units[unit].group);
    const Replica data = replicated ? Replica{share.shard_replica, share.num_shard_replicas} : Replica{};
    const at::Tensor part = of_slot ? at::Tensor() : state_part(unit, kind);
    for (size_t piece = 0; piece < slots_[unit].size(); ++piece) {
      const arch::ShardSlot& slot = slots_[unit][piece];
      const arch::ParamSpec& spec = table_[static_cast<size_t>(slot.param)];
      const std::optional<size_t> index = of_slot ? slot_of(spec, kind) : std::nullopt;
      if (of_slot && !index) continue;
      const at::Tensor values = index ? slot_piece(unit, piece, *index) : part.narrow(0, slot.offset, slot.numel);
      const Replica replica = replica_of(spec, data, options_);
      for (const arch::Rectangle& box : arch::rectangles(spec.local_shape, slot.begin, slot.numel)) {
        std::vector<int64_t> offset = spec.local_offset;
        int64_t numel = 1;
        for (size_t dim = 0; dim < offset.size(); ++dim) {
          offset[dim] += box.offset[dim];
          numel *= box.shape[dim];
        }
        state.push_back({.name = spec.name,
                         .kind = kind,
                         .global_shape = spec.shape,
                         .offset = std::move(offset),
                         .local = values.narrow(0, box.begin, numel).view(box.shape),
                         .replica = replica.index,
                         .num_replicas = replica.count});
      }
    }
  }
}

std::vector<StateTensor> ParameterStore::state() const {
  std::vector<StateTensor> state;
  const bool masters = owns_values() && options_.dtype != at::kFloat;
  const auto add = [&](StateKind kind) { add_parts(kind, state); };
  if (options_.offload_parameters || compute_kept_.defined())
    add(StateKind::kParameter);
  else
    add_whole(state);
  if (masters) add(StateKind::kMaster);
  if (!owns_optimizer()) return state;
  for (const arch::StateSlot& slot : arch::slots_of(table_)) add(StateKind{slot.name});
  return state;
}

}  // namespace lockstep::engine
