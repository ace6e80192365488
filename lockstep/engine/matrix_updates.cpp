#include "lockstep/engine/matrix_updates.h"

#include <ATen/ops/empty.h>

#include <memory>

#include "lockstep/base/check.h"

namespace lockstep::engine {
namespace {

using program::Action;
using program::ActionKind;
using program::HeldPiece;
using program::MatrixMessage;
using program::ScatteredMatrix;

// Where a rectangle of a piece lies in its matrix.
at::Tensor place_of(const at::Tensor& matrix, const HeldPiece& piece, const arch::Rectangle& box) {
  return matrix.narrow(0, piece.local_offset[0] + box.offset[0], box.shape[0])
      .narrow(1, piece.local_offset[1] + box.offset[1], box.shape[1]);
}

// use(place in the matrix, the same of the flat piece) for every rectangle.
template <typename Use>
void for_each_box(const at::Tensor& matrix, const HeldPiece& piece, const at::Tensor& values, const Use& use) {
  LOCKSTEP_CHECK_EQ(values.numel(), piece.numel, "elements of a piece of a matrix");
  for (const arch::Rectangle& box : arch::rectangles(piece.local_shape, piece.begin, piece.numel))
    use(place_of(matrix, piece, box), values.narrow(0, box.begin, box.shape[0] * box.shape[1]).view(box.shape));
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

MatrixUpdates::MatrixUpdates(const Parts& parts, const config::OptimizerSection& optimizer)
    : with_(parts), optimizer_(optimizer), plan_(parts.layout, parts.groups.rank()) {
  if (!program::scatters_matrices(with_.layout, with_.groups.rank())) return;
  LOCKSTEP_CHECK(optimizer_.ns_precision == with_.layout.optimizer.iterate_in, "the layout plans for another type of the iteration");
}

void MatrixUpdates::add_handlers(Handlers& handlers) {
  handlers.add({ActionKind::kGatherUpdate}, [this](const Action& action) { return gather(action); });
  handlers.add({ActionKind::kScatterUpdate}, [this](const Action& action) { return scatter(action); });
}

at::TensorOptions MatrixUpdates::wire() const {
  const at::Device device = with_.store.host() ? at::Device(at::kCPU) : with_.store.options().device;
  return at::TensorOptions().dtype(scalar_type(with_.layout.optimizer.iterate_in)).device(device);
}

optim::StepPoint MatrixUpdates::point() const {
  return {.lr = with_.state.lr, .number = with_.state.step, .grad_scale = with_.state.gradient_scale};
}

MemoryScope MatrixUpdates::memory() const {
  return {with_.store.options().memory, with_.store.host() ? MemoryCategory::kHost : MemoryCategory::kBuffers};
}

Started MatrixUpdates::waiting_for_all(std::vector<comm::Work> works) {
  return [this, all = std::make_shared<std::vector<comm::Work>>(std::move(works))] {
    for (comm::Work& work : *all) with_.waits.wait(work, "matrices");
    all->clear();
  };
}

Started MatrixUpdates::gather(const Action& action) {
  const MemoryScope scope = memory();
  const std::vector<ScatteredMatrix>& matrices = plan_.of(action.unit);
  const auto [place, fresh] = on_the_way_.try_emplace(action.unit);
  LOCKSTEP_CHECK(fresh, "matrices of layer ", action.unit, " are gathered already");
  OnTheWay& now = place->second;
  std::map<int, at::Tensor> mine;  // by row: what this rank has of it
  for (const ParameterStore::MatrixPiece& piece : with_.store.matrix_pieces(with_.store.unit_of(action.unit)))
    mine[piece.place.param] = optim::direction(piece.parameter, optimizer_, point()).to(wire(), false, true);
  now.matrices.resize(matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].owner != plan_.member()) continue;
    now.matrices[i] = at::empty({matrices[i].rows, matrices[i].columns}, wire());
    for (const HeldPiece& piece : matrices[i].pieces)
      if (piece.holder == plan_.member() && piece.copy == 0) put(now.matrices[i], piece, mine.at(matrices[i].param));
  }
  std::vector<comm::Work> works;
  const std::vector<program::PlannedCall>& calls = with_.calls.of(action);  // this rank's messages, in their order
  for (const MatrixMessage& each : plan_.gathered(action.unit)) {
    if (each.from == plan_.member()) {
      now.leaving.push_back(mine.at(matrices[each.matrix].param));
      works.push_back(execute(with_.groups, calls.at(works.size()), {.input = now.leaving.back()}));
    } else if (each.to == plan_.member()) {
      now.coming.emplace_back(each, at::empty({matrices[each.matrix].pieces[each.piece].numel}, wire()));
      works.push_back(execute(with_.groups, calls.at(works.size()), {.input = now.coming.back().second}));
    }
  }
  return waiting_for_all(std::move(works));
}

Started MatrixUpdates::scatter(const Action& action) {
  const MemoryScope scope = memory();
  const std::vector<ScatteredMatrix>& matrices = plan_.of(action.unit);
  OnTheWay& now = on_the_way_.at(action.unit);
  for (const auto& [from, values] : now.coming) put(now.matrices[from.matrix], matrices[from.matrix].pieces[from.piece], values);
  now.coming.clear();
  now.leaving.clear();
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].owner != plan_.member()) continue;
    const arch::ParamSpec& spec = with_.store.table()[static_cast<size_t>(matrices[i].param)];
    now.matrices[i] = optim::orthogonal(*spec.update.optimizer, now.matrices[i], optimizer_);
    for (const HeldPiece& piece : matrices[i].pieces)
      if (piece.holder == plan_.member()) now.pieces[matrices[i].param] = cut(now.matrices[i], piece);
  }
  std::vector<comm::Work> works;
  const std::vector<program::PlannedCall>& calls = with_.calls.of(action);  // this rank's messages, in their order
  for (const MatrixMessage& each : plan_.scattered(action.unit)) {
    const HeldPiece& piece = matrices[each.matrix].pieces[each.piece];
    if (each.from == plan_.member()) {
      now.leaving.push_back(cut(now.matrices[each.matrix], piece));
      works.push_back(execute(with_.groups, calls.at(works.size()), {.input = now.leaving.back()}));
    } else if (each.to == plan_.member()) {
      const auto [own, fresh] = now.pieces.try_emplace(matrices[each.matrix].param, at::empty({piece.numel}, wire()));
      LOCKSTEP_CHECK(fresh, "two pieces of row ", matrices[each.matrix].param, " of the table");
      works.push_back(execute(with_.groups, calls.at(works.size()), {.input = own->second}));
    }
  }
  now.matrices.clear();
  return waiting_for_all(std::move(works));
}

void MatrixUpdates::apply(int layer) {
  const auto found = on_the_way_.find(layer);
  if (found == on_the_way_.end()) return;
  for (const ParameterStore::MatrixPiece& piece : with_.store.matrix_pieces(with_.store.unit_of(layer))) {
    const arch::ParamSpec& spec = with_.store.table()[static_cast<size_t>(piece.place.param)];
    optim::apply(piece.parameter, found->second.pieces.at(piece.place.param), {.rows = spec.shape[0], .columns = spec.shape[1]},
                 optimizer_, point());
  }
  on_the_way_.erase(found);
}

}  // namespace lockstep::engine
