#include "lockstep/program/matrices.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

// Of the ranks with which this one has matrices cut, by their coordinate: tables with their pieces.
struct Tables {
  std::vector<std::vector<arch::ParamSpec>> tables{};
  std::vector<arch::FlatLayout> flats{};
};

// Experts lie over other ranks than all else.
bool folded(const Layout& layout, arch::ParameterGroup group) {
  return group == arch::ParameterGroup::kExperts && layout.domain(group) != layout.dense_domain();
}

// The axes that cut the parameters of a group; rows are whole.
mesh::View cut_over(const Layout& layout, arch::ParameterGroup group) {
  if (layout.sums_over_tensor(group)) return {};
  return folded(layout, group) ? mesh::View(layout.expert_ranks().fold, mesh::Axis::kEtp) : mesh::View(mesh::Axis::kTp);
}

Tables tables_of(const Layout& layout, int rank, arch::ParameterGroup group) {
  Tables all;
  for (const int neighbour : layout.mesh.group(rank, cut_over(layout, group))) {
    all.tables.push_back(layout.param_table(neighbour));
    all.flats.push_back(layout.flat_layout(all.tables.back()));
  }
  return all;
}

bool knows_matrices(const config::OptimizerSection& choice) {
  if (choice.kind != config::OptimizerKind::kAdamW) return true;
  return std::ranges::any_of(choice.rules.list, [](const config::OptimizerRule& rule) { return rule.optimizer.has_value(); });
}

bool several_share(const Layout& layout, arch::ParameterGroup group) {
  const bool there = group != arch::ParameterGroup::kExperts || layout.model.has_experts();
  return there && group_size(layout, matrix_group(layout, group)) > 1;
}

std::set<arch::ParameterGroup> groups_of_units(const Layout& layout, const std::set<int>& units) {
  std::set<arch::ParameterGroup> groups;
  for (const int unit : units) groups.insert(layout.group_of(unit));
  return groups;
}

// tp and etp vary fastest.
void add_pieces(const Tables& all, size_t unit, size_t slot, int tensor, ScatteredMatrix& matrix) {
  const auto at = static_cast<size_t>(tensor);
  const arch::FlatLayout& flat = all.flats[at];
  const arch::FlatUnit& place = flat.units[unit];
  const arch::ParamSpec& spec = all.tables[at][static_cast<size_t>(matrix.param)];
  const int64_t first = place.slots[slot].offset - place.begin, last = first + place.slots[slot].numel;
  const int64_t size = place.part();
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

// Within a unit from the largest matrix on, each to the member with the least work so far; spread evenly over the members where there
// are more of them than matrices.
void choose_owners(int members, std::map<int, std::vector<ScatteredMatrix>>& units) {
  size_t count = 0;
  for (const auto& [unit, matrices] : units) count += matrices.size();
  const int candidates = std::clamp(static_cast<int>(count), 1, members);
  std::set<std::pair<double, int>> loads;
  for (int i = 0; i < candidates; ++i) loads.emplace(0.0, i);
  for (auto& [unit, matrices] : units) {
    std::vector<ScatteredMatrix*> order;
    for (ScatteredMatrix& matrix : matrices) order.push_back(&matrix);
    std::ranges::stable_sort(order, std::ranges::greater{}, [](const ScatteredMatrix* matrix) { return matrix->flops(1); });
    for (ScatteredMatrix* matrix : order) {
      const auto [load, candidate] = *loads.begin();
      loads.erase(loads.begin());
      loads.emplace(load + matrix->flops(1), candidate);
      matrix->owner = static_cast<int>(int64_t{candidate} * members / candidates);
    }
  }
}

}  // namespace

double ScatteredMatrix::flops(int iterations) const { return iterations * arch::iteration_flops(rows, columns); }

GroupRef matrix_group(const Layout& layout, arch::ParameterGroup group) {
  const mesh::View cut = cut_over(layout, group);
  return group_over(layout, {cut.fold, layout.domain(group).shard.axes | cut.axes});
}

std::set<int> scattered_units(const Layout& layout, int rank) {
  const auto shared = [&](arch::ParameterGroup group) { return several_share(layout, group); };
  std::set<int> units;
  if (!knows_matrices(layout.optimizer) || std::ranges::none_of(arch::kParameterGroups, shared)) return units;
  for (const arch::ParamSpec& spec : layout.param_table(rank))
    if (arch::is_scattered_matrix(spec, layout.shards(spec.group))) units.insert(spec.unit);
  return units;
}

std::vector<GroupRef> matrix_groups(const Layout& layout, int rank) {
  std::vector<GroupRef> groups;
  for (const arch::ParameterGroup group : groups_of_units(layout, scattered_units(layout, rank)))
    groups.push_back(matrix_group(layout, group));
  return groups;
}

MatrixPlan::MatrixPlan(const Layout& layout, int rank)
    : element_size_(config::bytes_of(layout.optimizer.ns_precision)), num_layers_(layout.num_layers()) {
  for (const arch::ParameterGroup group : groups_of_units(layout, scattered_units(layout, rank))) add(layout, rank, group);
}

void MatrixPlan::add(const Layout& layout, int rank, arch::ParameterGroup group) {
  const Tables all = tables_of(layout, rank, group);
  std::map<int, std::vector<ScatteredMatrix>> units;
  for (size_t unit = 0; unit < all.flats[0].units.size(); ++unit) {
    const arch::FlatUnit& place = all.flats[0].units[unit];
    for (size_t slot = 0; place.group == group && slot < place.slots.size(); ++slot) {
      const arch::ParamSpec& spec = all.tables[0][static_cast<size_t>(place.slots[slot].param)];
      if (!arch::is_scattered_matrix(spec, place.shards)) continue;
      ScatteredMatrix matrix{.param = place.slots[slot].param, .rows = spec.shape[0], .columns = spec.shape[1]};
      for (int tensor = 0; tensor < static_cast<int>(all.tables.size()); ++tensor) add_pieces(all, unit, slot, tensor, matrix);
      units[place.id].push_back(std::move(matrix));
    }
  }
  const GroupRef ranks = matrix_group(layout, group);
  sharing_[group] = {.group = ranks, .member = group_rank(layout, rank, ranks)};
  choose_owners(group_size(layout, ranks), units);
  units_.merge(units);
}

const MatrixPlan::Sharing& MatrixPlan::sharing(int unit) const {
  const auto found = sharing_.find(static_cast<arch::ParameterGroup>(unit / num_layers_));
  LOCKSTEP_CHECK(found != sharing_.end(), "unit ", unit, " has no matrices that lie scattered");
  return found->second;
}

const std::vector<ScatteredMatrix>& MatrixPlan::of(int unit) const {
  static const std::vector<ScatteredMatrix> none;
  const auto found = units_.find(unit);
  return found == units_.end() ? none : found->second;
}

std::vector<MatrixMessage> MatrixPlan::messages(int unit, bool to_owners) const {
  std::vector<MatrixMessage> found;
  const std::vector<ScatteredMatrix>& matrices = of(unit);
  for (size_t i = 0; i < matrices.size(); ++i)
    for (size_t p = 0; p < matrices[i].pieces.size(); ++p) {
      const int owner = matrices[i].owner, holder = matrices[i].pieces[p].holder;
      if (holder == owner || (to_owners && matrices[i].pieces[p].copy > 0)) continue;
      found.push_back({.matrix = i, .piece = p, .from = to_owners ? holder : owner, .to = to_owners ? owner : holder});
    }
  return found;
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
