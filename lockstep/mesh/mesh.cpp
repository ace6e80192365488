#include "lockstep/mesh/mesh.h"

#include <limits>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/checked.h"

namespace lockstep::mesh {

PerAxis PerAxis::ones() {
  PerAxis degrees;
  for (Axis axis : kAxes) degrees[axis] = 1;
  return degrees;
}

Mesh::Mesh(const PerAxis& degrees) : degrees_(degrees) {
  int64_t ranks = 1;
  for (Axis axis : kAxes) {
    LOCKSTEP_CHECK(degrees_[axis] >= 1, "degree of ", axis_name(axis), ": ", degrees_[axis]);
    ranks = saturating_mul(ranks, degrees_[axis]);
  }
  LOCKSTEP_CHECK(ranks <= std::numeric_limits<int>::max(), "ranks: ", ranks);
  world_size_ = static_cast<int>(ranks);
}

Mesh Mesh::data_parallel(int dp) {
  PerAxis degrees = PerAxis::ones();
  degrees[Axis::kDpReplicate] = dp;
  return Mesh(degrees);
}

int Mesh::degree(AxisSet axes) const {
  int product = 1;
  for (const Axis axis : axes) product *= degrees_[axis];
  return product;
}

void Mesh::check_rank(int rank) const { LOCKSTEP_CHECK(rank >= 0 && rank < world_size_, "rank ", rank, " of ", world_size_); }

PerAxis Mesh::coordinates(int rank) const {
  check_rank(rank);
  PerAxis result;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    result[*axis] = rank % degrees_[*axis];
    rank /= degrees_[*axis];
  }
  return result;
}

int Mesh::rank(const PerAxis& coordinates) const {
  int result = 0;
  for (Axis axis : kAxes) {
    LOCKSTEP_CHECK(coordinates[axis] >= 0 && coordinates[axis] < degrees_[axis], axis_name(axis), " coordinate ",
                   coordinates[axis], " of ", degrees_[axis]);
    result = result * degrees_[axis] + coordinates[axis];
  }
  return result;
}

// The axes of a fold's block are neighbours, so its factors take their place among the digits.
Mesh::Digits Mesh::digits(const View& view) const {
  Digits found;
  int stride = world_size_;
  const auto add = [&](Axis axis, int degree) {
    stride /= degree;
    if (view.axes.contains(axis)) found.all[found.count++] = {.degree = degree, .stride = stride};
  };
  const AxisSet block = view.fold.block();
  bool folded = false;
  for (const Axis axis : kAxes) {
    if (!block.contains(axis)) {
      add(axis, degrees_[axis]);
    } else if (!folded) {
      folded = true;
      int64_t ranks = 1;
      for (const Factor& factor : view.fold.factors()) ranks = saturating_mul(ranks, factor.degree);
      LOCKSTEP_CHECK(ranks == degree(block), "a fold of ", ranks, " ranks over ", view_name(block), ", which has ", degree(block));
      for (const Factor& factor : view.fold.factors()) add(factor.axis, factor.degree);
    }
  }
  LOCKSTEP_CHECK(found.count == static_cast<size_t>(view.axes.size()), "of the axes ", view_name(view), " the mesh has ",
                 found.count, " under this fold");
  return found;
}

int Mesh::degree(const View& view) const {
  if (view.fold.block().empty()) return degree(view.axes);
  int product = 1;
  for (const Digit& digit : digits(view)) product *= digit.degree;
  return product;
}

std::vector<int> Mesh::group(int rank, const View& view) const {
  std::vector<int> ranks = {member(rank, view, 0)};
  for (const Digit& digit : digits(view)) {  // slowest first: ranks ascend
    std::vector<int> wider;
    wider.reserve(ranks.size() * static_cast<size_t>(digit.degree));
    for (const int first : ranks)
      for (int i = 0; i < digit.degree; ++i) wider.push_back(first + i * digit.stride);
    ranks = std::move(wider);
  }
  return ranks;
}

int Mesh::group_rank(int rank, const View& view) const {
  check_rank(rank);
  int index = 0;
  for (const Digit& digit : digits(view)) index = index * digit.degree + rank / digit.stride % digit.degree;
  return index;
}

int Mesh::member(int rank, const View& view, int index) const {
  check_rank(rank);
  const Digits digits = this->digits(view);
  int found = rank, left = index;
  for (const Digit* digit = digits.end(); digit != digits.begin();) {
    --digit;
    found += (left % digit->degree - rank / digit->stride % digit->degree) * digit->stride;
    left /= digit->degree;
  }
  LOCKSTEP_CHECK(index >= 0 && left == 0, "member ", index, " of the ", degree(view), " of ", view_name(view));
  return found;
}

AxisSet Mesh::several(const Fold& fold) const {
  AxisSet found;
  for (const Axis axis : kAxes)
    if (degrees_[axis] > 1 && !fold.block().contains(axis)) found = found | axis;
  for (const Factor& factor : fold.factors())
    if (factor.degree > 1) found = found | factor.axis;
  return found;
}

View Mesh::reduced(const View& view) const {
  const AxisSet axes = view.axes & several(view.fold);
  for (const Factor& factor : view.fold.factors())
    if (axes.contains(factor.axis)) return {view.fold, axes};
  return axes;
}

std::string Mesh::describe(int rank) const {
  const PerAxis at = coordinates(rank);
  std::vector<std::string> parts;
  for (Axis axis : kAxes) {
    if (degrees_[axis] > 1) parts.push_back(cat(axis_name(axis), at[axis]));
  }
  return parts.empty() ? "-" : join(parts, " ");
}

}  // namespace lockstep::mesh
