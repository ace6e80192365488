#include "lockstep/engine/matrix_updates.h"

#include <ATen/ops/empty.h>

#include "lockstep/base/check.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;
using program::HeldPiece;
using program::MatrixMessage;
using program::ScatteredMatrix;

// use(place in the matrix, the same of the flat piece) for every rectangle.
template <typename Use>
void for_each_box(const at::Tensor& matrix, const HeldPiece& piece, const at::Tensor& values, const Use& use) {
  LOCKSTEP_CHECK_EQ(values.numel(), piece.numel, "elements of a piece of a matrix");
  for (const arch::Rectangle& box : arch::rectangles(piece.local_shape, piece.begin, piece.numel))
    use(matrix.narrow(0, piece.local_offset[0] + box.offset[0], box.shape[0]).narrow(1, piece.local_offset[1] + box.offset[1], box.shape[1]),
        values.narrow(0, box.begin, box.shape[0] * box.shape[1]).view(box.shape));
}

void put(const at::Tensor& matrix, const HeldPiece& piece, const at::Tensor& values) {
  for_each_box(matrix, piece, values, [](const at::Tensor& place, const at::Tensor& part) { place.copy_(part); });
}

at::Tensor cut(const at::Tensor& matrix, const HeldPiece& piece) {
  const at::Tensor values = at::empty({piece.numel}, matrix.options());
  for_each_box(matrix, piece, values, [](const at::Tensor& place, const at::Tensor& part) { part.copy_(place); });
  return values;
}

}  // namespace

MatrixUpdates::MatrixUpdates(const StepView& step) : step_(step), plan_(step.layout, step.groups.rank()) {}

void MatrixUpdates::add_handlers(Handlers& handlers) {
  handlers.add({ActionKind::kGatherUpdate}, [this](const Action& action) { return gather(action); });
  handlers.add({ActionKind::kScatterUpdate}, [this](const Action& action) { return scatter(action); });
}

at::TensorOptions MatrixUpdates::wire() const {
  const at::Device device = step_.store.host() ? at::Device(at::kCPU) : step_.store.options().device;
  return at::TensorOptions().dtype(scalar_type(step_.layout.optimizer.ns_precision)).device(device);
}

MemoryScope MatrixUpdates::memory() const {
  return {step_.store.options().memory, step_.store.host() ? MemoryCategory::kHost : MemoryCategory::kBuffers};
}

Started MatrixUpdates::gather(const Action& action) {
  const MemoryScope scope = memory();
  const std::vector<ScatteredMatrix>& matrices = plan_.of(action.unit);
  const auto [place, fresh] = on_the_way_.try_emplace(action.unit);
  LOCKSTEP_CHECK(fresh, "matrices of layer ", action.unit, " are gathered already");
  OnTheWay& now = place->second;
  const int here = plan_.member(action.unit);
  std::map<int, at::Tensor> mine;  // by row: what this rank has of it
  for (const ParameterStore::Updated& piece : step_.store.updated(step_.store.unit_of(action.unit), /*scattered=*/true))
    mine[piece.place.param] = optim::direction(piece.parameter, step_.layout.optimizer, step_.state.point()).to(wire(), false, true);
  now.matrices.resize(matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].owner != here) continue;
    now.matrices[i] = at::empty({matrices[i].rows, matrices[i].columns}, wire());
    for (const HeldPiece& piece : matrices[i].pieces)
      if (piece.holder == here && piece.copy == 0) put(now.matrices[i], piece, mine.at(matrices[i].param));
  }
  std::vector<comm::Work> works;
  const std::vector<program::PlannedCall>& calls = step_.calls.of(action);  // this rank's messages, in their order
  for (const MatrixMessage& each : plan_.messages(action.unit, /*to_owners=*/true)) {
    if (each.from == here) {
      now.leaving.push_back(mine.at(matrices[each.matrix].param));
      works.push_back(execute(step_.groups, calls.at(works.size()), {.input = now.leaving.back()}));
    } else if (each.to == here) {
      now.coming.emplace_back(each, at::empty({matrices[each.matrix].pieces[each.piece].numel}, wire()));
      works.push_back(execute(step_.groups, calls.at(works.size()), {.input = now.coming.back().second}));
    }
  }
  return waiting_for(std::move(works), step_.waits, "matrices");
}

Started MatrixUpdates::scatter(const Action& action) {
  const MemoryScope scope = memory();
  const std::vector<ScatteredMatrix>& matrices = plan_.of(action.unit);
  OnTheWay& now = on_the_way_.at(action.unit);
  const int here = plan_.member(action.unit);
  for (const auto& [from, values] : now.coming) put(now.matrices[from.matrix], matrices[from.matrix].pieces[from.piece], values);
  now.coming.clear();
  now.leaving.clear();
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].owner != here) continue;
    const arch::ParamSpec& spec = step_.store.table()[static_cast<size_t>(matrices[i].param)];
    now.matrices[i] = optim::orthogonal(*spec.update.optimizer, now.matrices[i], step_.layout.optimizer);
    for (const HeldPiece& piece : matrices[i].pieces)
      if (piece.holder == here) now.pieces[matrices[i].param] = cut(now.matrices[i], piece);
  }
  std::vector<comm::Work> works;
  const std::vector<program::PlannedCall>& calls = step_.calls.of(action);  // this rank's messages, in their order
  for (const MatrixMessage& each : plan_.messages(action.unit, /*to_owners=*/false)) {
    const HeldPiece& piece = matrices[each.matrix].pieces[each.piece];
    if (each.from == here) {
      now.leaving.push_back(cut(now.matrices[each.matrix], piece));
      works.push_back(execute(step_.groups, calls.at(works.size()), {.input = now.leaving.back()}));
    } else if (each.to == here) {
      const auto [own, fresh] = now.pieces.try_emplace(matrices[each.matrix].param, at::empty({piece.numel}, wire()));
      LOCKSTEP_CHECK(fresh, "two pieces of row ", matrices[each.matrix].param, " of the table");
      works.push_back(execute(step_.groups, calls.at(works.size()), {.input = own->second}));
    }
  }
  now.matrices.clear();
  return waiting_for(std::move(works), step_.waits, "matrices");
}

void MatrixUpdates::apply(int unit) {
  const auto found = on_the_way_.find(unit);
  if (found == on_the_way_.end()) return;
  for (const ParameterStore::Updated& piece : step_.store.updated(step_.store.unit_of(unit), /*scattered=*/true)) {
    const arch::ParamSpec& spec = step_.store.table()[static_cast<size_t>(piece.place.param)];
    optim::apply(piece.parameter, found->second.pieces.at(piece.place.param), spec.shape, step_.layout.optimizer, step_.state.point());
  }
  on_the_way_.erase(found);
}

}  // namespace lockstep::engine
