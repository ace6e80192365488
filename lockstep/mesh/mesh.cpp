#include "lockstep/mesh/mesh.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/checked.h"

namespace lockstep::mesh {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return "pp";
    case Axis::kDpReplicate:
      return "dp_replicate";
    case Axis::kDpShard:
      return "dp_shard";
    case Axis::kCp:
      return "cp";
    case Axis::kTp:
      return "tp";
  }
  throw InternalError(cat("no such axis: ", static_cast<int>(axis)));
}

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

int Mesh::degree(std::span<const Axis> axes) const {
  int product = 1;
  for (Axis axis : axes) product *= degrees_[axis];
  return product;
}

PerAxis Mesh::coordinates(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < world_size_, "rank ", rank, " of ", world_size_);
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

std::vector<int> Mesh::group(int rank, std::span<const Axis> axes) const {
  std::vector<PerAxis> members = {coordinates(rank)};
  for (Axis axis : axes) {
    std::vector<PerAxis> wider;
    for (const PerAxis& member : members) {
      for (int i = 0; i < degrees_[axis]; ++i) {
        wider.push_back(member);
        wider.back()[axis] = i;
      }
    }
    members = std::move(wider);
  }
  std::vector<int> ranks;
  for (const PerAxis& member : members) ranks.push_back(this->rank(member));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int Mesh::group_rank(int rank, std::span<const Axis> axes) const {
  const PerAxis at = coordinates(rank);
  int place = 0;  // ranks ascend with the coordinates, the first of kAxes before all others
  for (Axis axis : kAxes)
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) place = place * degrees_[axis] + at[axis];
  return place;
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
