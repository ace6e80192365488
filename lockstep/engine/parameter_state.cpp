// What checkpoints see of a store.
#include "lockstep/engine/parameter_store.h"

namespace lockstep::engine {
namespace {

// The whole piece of this rank, which the ranks of `data` have too; so have its copies over tp, and of a tied parameter another
// pipeline rank.
StateTensor piece_of(const arch::ParamSpec& spec, StateKind kind, const mesh::View& data, const StoreOptions& options) {
  const program::Layout& layout = options.layout;
  const int rank = options.rank, ranks = layout.mesh.degree(data);
  const bool tied = spec.layer == 0 && layout.tied_peer(rank) >= 0;
  const int copy = tied && !layout.holds(rank, 0) ? 1 : 0;
  return {.name = spec.name,
          .kind = kind,
          .global_shape = spec.shape,
          .offset = spec.local_offset,
          .local = {},
          .replica = (copy * ranks + layout.mesh.group_rank(rank, data)) * spec.copies + spec.copy,
          .num_replicas = (tied ? 2 : 1) * ranks * spec.copies};
}

}  // namespace

// A part begins and ends inside rows: of a parameter it holds up to three rectangles.
void ParameterStore::add_parts(StateKind kind, std::vector<StateTensor>& state) const {
  // A parameter server's state lives on the server alone: it is its own only replica.
  const bool replicated = !options_.layout.server_mode() || kind == StateKind::kParameter;
  const bool of_slot = kind != StateKind::kParameter && kind != StateKind::kMaster;
  for (size_t unit = 0; unit < slots_.size(); ++unit) {
    if (kind == StateKind::kParameter && !compute_.transient(unit)) continue;  // told whole
    if (kind == StateKind::kMaster && dtype(unit) == at::kFloat) continue;     // told as a parameter
    const mesh::View copies = replicated ? options_.layout.domain(layout_.units[unit].group).copies : mesh::View();
    const at::Tensor part = of_slot ? at::Tensor() : state_part(unit, kind);
    for (size_t piece = 0; piece < slots_[unit].size(); ++piece) {
      const arch::ShardSlot& slot = slots_[unit][piece];
      const arch::ParamSpec& spec = table_[static_cast<size_t>(slot.param)];
      const std::optional<size_t> index = of_slot ? slot_of(spec, kind) : std::nullopt;
      if (of_slot && !index) continue;
      const at::Tensor values = index ? slot_piece(unit, piece, *index) : part.narrow(0, slot.offset, slot.numel);
      const StateTensor whole = piece_of(spec, kind, copies, options_);
      for (const arch::Rectangle& box : arch::rectangles(spec.local_shape, slot.begin, slot.numel)) {
        StateTensor& tensor = state.emplace_back(whole);
        int64_t numel = 1;
        for (size_t dim = 0; dim < tensor.offset.size(); ++dim) {
          tensor.offset[dim] += box.offset[dim];
          numel *= box.shape[dim];
        }
        tensor.local = values.narrow(0, box.begin, numel).view(box.shape);
      }
    }
  }
}

std::vector<StateTensor> ParameterStore::state() const {
  std::vector<StateTensor> state;
  // One tensor for a parameter: a view into a compute copy that this rank has whole.
  for (size_t row = 0; row < table_.size(); ++row) {
    if (compute_.transient(places_[row].unit)) continue;
    const mesh::View ranks = options_.layout.domain(table_[row].group).sum;
    state.push_back(piece_of(table_[row], StateKind::kParameter, ranks, options_));
    state.back().local = view(compute_, {static_cast<int>(row)});
  }
  add_parts(StateKind::kParameter, state);
  if (owns_values() && dtype() != at::kFloat) add_parts(StateKind::kMaster, state);
  if (!owns_optimizer()) return state;
  for (const arch::StateSlot& slot : arch::slots_of(table_)) add_parts(StateKind{slot.name}, state);
  return state;
}

}  // namespace lockstep::engine
