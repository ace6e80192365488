// Who sends which rows to whom among the ranks that share experts: arithmetic that every rank does alike, from what all know of each
// other. Rank m of ep x etp has part m / etp of the experts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/routing.h"

namespace lockstep::parallel {

// What one rank sends: its assignments by expert, then by row.
struct Assigned {
  std::vector<int64_t> counts{};  // [E] of each expert
  std::vector<int64_t> rows{};    // [N] which of its rows; empty where nobody asks
  std::vector<float> weights{};   // [N], likewise
  int64_t tokens = 0;             // T: its rows; 0 where nobody asks
};

// Of E experts, those of one of ep parts.
mesh::Range part_of_experts(int64_t experts, int ep, int part);

// Places of rows that came by source, then by expert, in the order by expert, then by source: [R], to gather with. counts: of each
// source, by local expert. Within a source and an expert the order stays.
std::vector<int64_t> by_expert(const std::vector<std::vector<int64_t>>& counts);

// Rows that come to the ranks of each part of the experts, and the most of them.
std::vector<int64_t> received_by(const std::vector<Assigned>& sources, int ep);
// Round `round` of `rounds`: its part of what comes to every rank, cut in the order in which it lies there, by expert, then by source: of each source
// and expert of the model which of its assignments that is. None has more than its share, rounded up.
std::vector<std::vector<mesh::Range>> cut_received(const std::vector<Assigned>& sources, int ep, int64_t rounds, int64_t round);
// The assignments in these ranges, one for each expert. `places`, not null: which of the source's they are.
Assigned taken(const Assigned& source, const std::vector<mesh::Range>& ranges, std::vector<int64_t>* places = nullptr);

// The rows of a source that experts of any part in [parts.begin, parts.end) get: ascending, each once.
std::vector<int64_t> rows_for(const Assigned& source, int ep, mesh::Range parts);

// What comes to the experts `here`, by expert, then by source, then as sent: whose row and with which weight. index: of a source and its
// row, among the `rows` rows of tokens that are on this rank. `slots`: of each its source times `most` plus its place there.
nn::Routing routing_here(const std::vector<Assigned>& sources, mesh::Range here, int64_t rows,
                         const std::function<int64_t(size_t source, int64_t row)>& index, int64_t most, std::vector<int64_t>& slots);
// The same of what a source sends.
nn::Routing routing_of(const Assigned& source, int64_t rows);

// A step of rows from rank to rank: which of the rows here go, by peer, and how many to and from each. The way back the same numbers
// change places, and what comes of one row is added in the order of peers.
struct Hop {
  nn::Routing routing{};
  std::vector<int64_t> sent{}, received{};
};
// The two steps of a hierarchical dispatcher, over nodes of `node` neighbours, of rank `rank`: a row goes to each node that has any of its
// experts, to the rank of the sender's place; and from there to the ranks of the node that have them.
struct NodeHops {
  Hop over_nodes{}, inside_node{};
  int64_t rows = 0;                           // that end here
  std::vector<std::vector<int64_t>> place{};  // of each source and row among them; -1: it does not come
};
NodeHops hops_over_nodes(const std::vector<Assigned>& sources, int ep, int node, int rank);

}  // namespace lockstep::parallel
