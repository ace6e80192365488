#include "lockstep/program/matrices.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>


namespace lockstep::program {
namespace {

// The rank's neighbours on tp, by their coordinate: tables with their pieces.
struct Tables {
  std::vector<std::vector<arch::ParamSpec>> tables{};
  std::vector<arch::FlatLayout> flats{};
};

Tables tables_of(const Layout& layout, int rank) {
  Tables all;
  for (const int neighbour : layout.mesh.group(rank, mesh::Axis::kTp)) {
    all.tables.push_back(layout.param_table(neighbour));
    all.flats.push_back(arch::flat_layout(all.tables.back(), layout.shards()));
  }
  return all;
}

bool knows_matrices(const arch::OptimizerChoice& choice) {
  if (choice.kind != config::OptimizerKind::kAdamW) return true;
  return std::ranges::any_of(choice.rules.list, [](const config::OptimizerRule& rule) { return rule.optimizer.has_value(); });
}

// tp varies fastest.
void add_pieces(const Tables& all, size_t unit, size_t slot, int tensor, ScatteredMatrix& matrix) {
  const auto at = static_cast<size_t>(tensor);
  const arch::FlatLayout& flat = all.flats[at];
  const arch::FlatUnit& place = flat.units[unit];
  const arch::ParamSpec& spec = all.tables[at][static_cast<size_t>(matrix.param)];
  const int64_t first = place.slots[slot].offset - place.begin, last = first + place.slots[slot].numel;
  const int64_t size = place.numel() / flat.shards;
  for (int64_t shard = first / size; shard * size < last; ++shard) {
    const int64_t begin = std::max(first, shard * size), end = std::min(last, (shard + 1) * size);
    if (end <= begin) continue;
    matrix.pieces.push_back({.holder = static_cast<int>(shard) * static_cast<int>(all.tables.size()) + tensor,
                             .begin = begin - first,
                             .numel = end - begin,
                             .copy = spec.copy,
                             .local_shape = spec.local_shape,
                             .local_offset = spec.local_offset});
  }
}

// Spread evenly over the members where there are more of them than matrices.
class Owners {
 public:
  Owners(int members, int matrices) : members_(members), candidates_(std::clamp(matrices, 1, members)) {
    for (int i = 0; i < candidates_; ++i) load_.emplace(0.0, i);
  }
  void choose(std::vector<ScatteredMatrix>& matrices) {
    std::vector<size_t> order(matrices.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return matrices[i].flops(1); });
    for (const size_t i : order) {
      auto [load, candidate] = *load_.begin();
      load_.erase(load_.begin());
      load_.emplace(load + matrices[i].flops(1), candidate);
      matrices[i].owner = static_cast<int>(int64_t{candidate} * members_ / candidates_);
    }
  }

 private:
  int members_, candidates_;
  std::set<std::pair<double, int>> load_;
};

}  // namespace

double ScatteredMatrix::flops(int iterations) const { return iterations * arch::iteration_flops(rows, columns); }

GroupRef matrix_group(const Layout& layout) {
  return group_over(layout, layout.dense_domain().shard.axes | mesh::Axis::kTp);
}

bool scatters_matrices(const Layout& layout, int rank, int unit) {
  if (!knows_matrices(layout.optimizer) || group_size(layout, matrix_group(layout)) == 1) return false;
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  return std::ranges::any_of(table, [&](const arch::ParamSpec& spec) {
    return (unit < 0 || spec.layer == unit) && arch::is_scattered_matrix(spec, layout.shards());
  });
}

MatrixPlan::MatrixPlan(const Layout& layout, int rank)
    : group_(matrix_group(layout)),
      member_(group_rank(layout, rank, group_)),
      element_size_(layout.optimizer.iterate_in == config::Precision::kBf16 ? 2 : 4) {
  if (!scatters_matrices(layout, rank)) return;
  const Tables all = tables_of(layout, rank);
  int count = 0;
  for (size_t unit = 0; unit < all.flats[0].units.size(); ++unit) {
    const arch::FlatUnit& place = all.flats[0].units[unit];
    for (size_t slot = 0; slot < place.slots.size(); ++slot) {
      const arch::ParamSpec& spec = all.tables[0][static_cast<size_t>(place.slots[slot].param)];
      if (!arch::is_scattered_matrix(spec, layout.shards())) continue;
      ScatteredMatrix matrix{.param = place.slots[slot].param, .rows = spec.shape[0], .columns = spec.shape[1]};
      for (int tensor = 0; tensor < static_cast<int>(all.tables.size()); ++tensor) add_pieces(all, unit, slot, tensor, matrix);
      units_[place.layer].push_back(std::move(matrix));
      ++count;
    }
  }
  Owners owners(group_size(layout, group_), count);
  for (auto& [unit, matrices] : units_) owners.choose(matrices);
}

const std::vector<ScatteredMatrix>& MatrixPlan::of(int unit) const {
  static const std::vector<ScatteredMatrix> none;
  const auto found = units_.find(unit);
  return found == units_.end() ? none : found->second;
}

std::vector<MatrixMessage> MatrixPlan::gathered(int unit) const {
  std::vector<MatrixMessage> messages;
  const std::vector<ScatteredMatrix>& matrices = of(unit);
  for (size_t i = 0; i < matrices.size(); ++i)
    for (size_t p = 0; p < matrices[i].pieces.size(); ++p) {
      const HeldPiece& piece = matrices[i].pieces[p];
      if (piece.copy == 0 && piece.holder != matrices[i].owner)
        messages.push_back({.matrix = i, .piece = p, .from = piece.holder, .to = matrices[i].owner});
    }
  return messages;
}

std::vector<MatrixMessage> MatrixPlan::scattered(int unit) const {
  std::vector<MatrixMessage> messages;
  const std::vector<ScatteredMatrix>& matrices = of(unit);
  for (size_t i = 0; i < matrices.size(); ++i)
    for (size_t p = 0; p < matrices[i].pieces.size(); ++p)
      if (const int holder = matrices[i].pieces[p].holder; holder != matrices[i].owner)
        messages.push_back({.matrix = i, .piece = p, .from = matrices[i].owner, .to = holder});
  return messages;
}

// What a member sends and what it has gathered, and, once it has orthogonalised, what comes back.
int64_t MatrixPlan::most_bytes(int unit) const {
  std::map<int, int64_t> elements;
  for (const ScatteredMatrix& matrix : of(unit)) {
    elements[matrix.owner] += 2 * matrix.rows * matrix.columns;
    for (const HeldPiece& piece : matrix.pieces) elements[piece.holder] += piece.numel;
  }
  int64_t most = 0;
  for (const auto& [member, count] : elements) most = std::max(most, count);
  return most * element_size_;
}

}  // namespace lockstep::program
