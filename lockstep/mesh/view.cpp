#include "lockstep/mesh/view.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::mesh {

std::string_view axis_name(Axis axis) {
  constexpr std::array<std::string_view, 15> kNames = {"pp",        "dp_replicate", "dp_shard", "cp",       "tp", "edp_replicate",
                                                       "edp_shard", "ep",           "etp",      "kv_parts", "kv", "ep_nodes",
                                                       "ep_node",   "cp_outer",     "cp_inner"};
  LOCKSTEP_CHECK(static_cast<size_t>(axis) < kNames.size(), "axis ", static_cast<int>(axis));
  return kNames[static_cast<size_t>(axis)];
}

Fold::Fold(AxisSet block, std::initializer_list<Factor> factors) : block_(block), count_(factors.size()) {
  const auto first = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis axis) { return block.contains(axis); });
  AxisSet neighbours;
  for (auto axis = first; axis != kAxes.end() && block.contains(*axis); ++axis) neighbours = neighbours | *axis;
  LOCKSTEP_CHECK(!block.empty() && neighbours == block, "a fold of ", view_name(block), ", which are no neighbours");
  LOCKSTEP_CHECK(count_ <= kMaxFactors, "factors: ", count_);
  size_t next = 0;
  for (const Factor& factor : factors) {
    LOCKSTEP_CHECK(factor.degree >= 1, axis_name(factor.axis), " ", factor.degree);
    LOCKSTEP_CHECK(std::find(kAxes.begin(), kAxes.end(), factor.axis) == kAxes.end(), axis_name(factor.axis), " as a factor");
    factors_[next++] = factor;
  }
}

Fold expert_fold(const ExpertDegrees& degrees) {
  return Fold(Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp, {{Axis::kEdpReplicate, degrees.edp_replicate},
                                                                            {Axis::kEdpShard, degrees.edp_shard},
                                                                            {Axis::kEp, degrees.ep},
                                                                            {Axis::kEtp, degrees.etp}});
}

Fold expert_node_fold(const ExpertDegrees& degrees, int node) {
  const int experts = degrees.ep * degrees.etp;
  LOCKSTEP_CHECK(node >= 1 && experts % node == 0, "ep x etp ", experts, " on nodes of ", node);
  return Fold(Axis::kDpReplicate | Axis::kDpShard | Axis::kCp | Axis::kTp, {{Axis::kEdpShard, degrees.edp_replicate * degrees.edp_shard},
                                                                            {Axis::kEpNodes, experts / node},
                                                                            {Axis::kEpNode, node}});
}

Fold context_fold(int cp, int inner) {
  LOCKSTEP_CHECK(inner >= 1 && cp % inner == 0, "cp ", cp, " in groups of ", inner);
  return Fold(Axis::kCp, {{Axis::kCpOuter, cp / inner}, {Axis::kCpInner, inner}});
}

Fold heads_fold(int tp, int copies) {
  LOCKSTEP_CHECK(copies >= 1 && tp % copies == 0, "tp ", tp, " in copies of ", copies);
  return Fold(Axis::kTp, {{Axis::kKvParts, tp / copies}, {Axis::kKvCopies, copies}});
}

std::string view_name(const View& view) {
  std::vector<std::string> names;
  for (const Axis axis : view.axes) names.emplace_back(axis_name(axis));
  return names.empty() ? "-" : join(names, " x ");
}

}  // namespace lockstep::mesh
