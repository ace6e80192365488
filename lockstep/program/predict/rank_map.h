// Who is with whom by axis, on which server every rank should stand, and what of the traffic then leaves a server.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/program/layout.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

struct AxisGroups {
  std::string axis{};  // "tp", "dp_shard", "dp_replicate", "pp", "etp", "ep", "tied"
  int count = 0;       // groups
  std::vector<std::vector<int>> groups{};  // the first of them, by their first ranks
};
// Of every axis with several ranks, the fastest axis first; "tied": the two ranks that hold a tied embedding twice. At most
// `most` groups of each are made.
std::vector<AxisGroups> axis_groups(const Layout& layout, int64_t most = std::numeric_limits<int64_t>::max());

// Servers with places for `ranks_per_node` ranks, filled one after the other by all ranks in a line. Arithmetic: nothing is kept
// for a rank.
class RankMap {
 public:
  // `order`: the axes along which the ranks stand in line, fastest first. `used`: places of a server that are filled.
  RankMap(const mesh::Mesh& mesh, const std::array<mesh::Axis, mesh::kAxes.size()>& order, int used, int ranks_per_node)
      : mesh_(mesh), order_(order), used_(used), empty_places_(ranks_per_node - used) {}
  int node_of(int rank) const;
  int nodes() const { return (mesh_.world_size() - 1) / used_ + 1; }
  int places_used() const { return used_; }     // of a full server
  int empty_places() const { return empty_places_; }
  std::vector<int> ranks_on(int node) const;  // ascending

 private:
  mesh::Mesh mesh_;
  std::array<mesh::Axis, mesh::kAxes.size()> order_;
  int used_, empty_places_;
};
// Neighbours first along tp, then along pp, then along the data axes, as many whole tp groups on a server as it has places
// for: the axis that talks most stays inside, the stages of a pipeline stand next to each other, and only gradients, once
// a step, go far (Narayanan et al. 2021, section 5). A tp group beyond one server takes several.
RankMap placed_by_axis(const Layout& layout, int ranks_per_node);
// Rank r on server r / ranks_per_node: where a launcher puts them that is told nothing.
RankMap placed_in_order(const Layout& layout, int ranks_per_node);
// The servers of one copy of the model, which want one leaf switch; one entry per coordinate on the data axes. Of placed_by_axis.
std::vector<std::vector<int>> nodes_of_copies(const Layout& layout, const RankMap& map);

// Predicted bytes that all ranks send in a step over one axis of the ledger, and those that go to another server.
struct AxisTraffic {
  std::string axis;
  int64_t sent = 0;
  std::vector<int64_t> between_nodes;  // for each map
};
std::vector<AxisTraffic> axis_traffic(const Layout& layout, const Program& program, const std::vector<RankMap>& maps);

}  // namespace lockstep::program
