#include "lockstep/parallel/expert/routes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

size_t at_index(int64_t i) { return static_cast<size_t>(i); }

// Where the assignments of each expert begin.
std::vector<int64_t> begins(const Assigned& source) {
  std::vector<int64_t> begin;
  int64_t sum = 0;
  for (const int64_t count : source.counts) begin.push_back(std::exchange(sum, sum + count));
  return begin;
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

mesh::Range part_of_experts(int64_t experts, int ep, int part) {
  LOCKSTEP_CHECK_EQ(experts % ep, 0, experts, " experts on ", ep, " ranks");
  const int64_t each = experts / ep;
  return {.begin = each * part, .end = each * (part + 1)};
}

std::vector<int64_t> by_expert(const std::vector<std::vector<int64_t>>& counts) {
  const size_t experts = counts.empty() ? 0 : counts.front().size();
  std::vector<int64_t> next;  // of each source, of the expert at hand: where its rows begin
  int64_t all = 0;
  for (const std::vector<int64_t>& source : counts) {
    next.push_back(all);
    all = std::accumulate(source.begin(), source.end(), all);
  }
  std::vector<int64_t> places;
  places.reserve(at_index(all));
  for (size_t expert = 0; expert < experts; ++expert)
    for (size_t source = 0; source < counts.size(); ++source)
      for (int64_t row = 0; row < counts[source][expert]; ++row) places.push_back(next[source]++);
  return places;
}

std::vector<int64_t> received_by(const std::vector<Assigned>& sources, int ep) {
  std::vector<int64_t> rows(at_index(ep), 0);
  for (const Assigned& source : sources)
    for (int part = 0; part < ep; ++part) {
      const mesh::Range experts = part_of_experts(std::ssize(source.counts), ep, part);
      for (int64_t e = experts.begin; e < experts.end; ++e) rows[at_index(part)] += source.counts[at_index(e)];
    }
  return rows;
}

std::vector<std::vector<mesh::Range>> cut_received(const std::vector<Assigned>& sources, int ep, int64_t rounds, int64_t round) {
  const int64_t experts = std::ssize(sources.front().counts);
  const std::vector<int64_t> received = received_by(sources, ep);
  std::vector<std::vector<int64_t>> begin;
  for (const Assigned& source : sources) begin.push_back(begins(source));
  std::vector<std::vector<mesh::Range>> ranges(sources.size(), std::vector<mesh::Range>(at_index(experts)));
  for (int of = 0; of < ep; ++of) {
    const int64_t all = received[at_index(of)];
    const int64_t first = all * round / rounds, last = all * (round + 1) / rounds;
    int64_t place = 0;  // where the rows of a source for an expert begin on the ranks of this part
    const mesh::Range here = part_of_experts(experts, ep, of);
    for (int64_t e = here.begin; e < here.end; ++e)
      for (size_t source = 0; source < sources.size(); ++source) {
        const int64_t count = sources[source].counts[at_index(e)], from = begin[source][at_index(e)];
        ranges[source][at_index(e)] = {.begin = from + std::clamp<int64_t>(first - place, 0, count),
                                       .end = from + std::clamp<int64_t>(last - place, 0, count)};
        place += count;
      }
  }
  return ranges;
}

Assigned taken(const Assigned& source, const std::vector<mesh::Range>& ranges, std::vector<int64_t>* places) {
  Assigned some;
  some.tokens = source.tokens;
  for (const mesh::Range& range : ranges) {
    some.counts.push_back(range.size());
    for (int64_t place = range.begin; place < range.end; ++place) {
      if (places) places->push_back(place);
      if (source.rows.empty()) continue;
      some.rows.push_back(source.rows[at_index(place)]);
      some.weights.push_back(source.weights[at_index(place)]);
    }
  }
  return some;
}

std::vector<int64_t> rows_for(const Assigned& source, int ep, mesh::Range parts) {
  std::vector<char> wanted(at_index(source.tokens), 0);
  const std::vector<int64_t> begin = begins(source);
  const int64_t experts = std::ssize(source.counts);
  const int64_t first = part_of_experts(experts, ep, static_cast<int>(parts.begin)).begin;
  const int64_t last = part_of_experts(experts, ep, static_cast<int>(parts.end) - 1).end;
  for (int64_t e = first; e < last; ++e)
    for (int64_t i = 0; i < source.counts[at_index(e)]; ++i) wanted[at_index(source.rows[at_index(begin[at_index(e)] + i)])] = 1;
  std::vector<int64_t> rows;
  for (size_t row = 0; row < wanted.size(); ++row)
    if (wanted[row]) rows.push_back(static_cast<int64_t>(row));
  return rows;
}

nn::Routing routing_here(const std::vector<Assigned>& sources, mesh::Range here, int64_t rows,
                         const std::function<int64_t(size_t source, int64_t row)>& index, int64_t most, std::vector<int64_t>& slots) {
  nn::Routing routing;
  std::vector<std::vector<int64_t>> begin;
  for (const Assigned& source : sources) begin.push_back(begins(source));
  for (int64_t e = here.begin; e < here.end; ++e) {
    int64_t& count = routing.counts.emplace_back(0);
    for (size_t source = 0; source < sources.size(); ++source)
      for (int64_t i = 0; i < sources[source].counts[at_index(e)]; ++i, ++count) {
        const int64_t place = begin[source][at_index(e)] + i;
        routing.rows.push_back(index(source, sources[source].rows[at_index(place)]));
        routing.weights.push_back(sources[source].weights[at_index(place)]);
        slots.push_back(static_cast<int64_t>(source) * most + place);
      }
  }
  nn::index_rows(routing, rows);
  return routing;
}

nn::Routing routing_of(const Assigned& source, int64_t rows) {
  nn::Routing routing;
  routing.counts = source.counts;
  routing.rows = source.rows;
  routing.weights = source.weights;
  nn::index_rows(routing, rows);
  return routing;
}

NodeHops hops_over_nodes(const std::vector<Assigned>& sources, int ep, int node, int rank) {
  const int ranks = static_cast<int>(sources.size()), etp = ranks / ep, nodes = ranks / node, here = rank / node, place = rank % node;
  const auto of_ranks = [&](int first, int last) { return mesh::Range{.begin = first / etp, .end = (last - 1) / etp + 1}; };
  const auto for_node = [&](int source, int of) { return rows_for(sources[at_index(source)], ep, of_ranks(of * node, (of + 1) * node)); };
  const auto for_rank = [&](int source, int of) { return rows_for(sources[at_index(source)], ep, of_ranks(of, of + 1)); };
  NodeHops hops;
  std::vector<std::vector<int64_t>> arrived;  // on this node through this rank, by node of the sender, whose place is the same
  int64_t through = 0;
  for (int other = 0; other < nodes; ++other) {
    const std::vector<int64_t> rows = for_node(rank, other);
    append(hops.over_nodes.routing.rows, rows);
    hops.over_nodes.sent.push_back(std::ssize(rows));
    arrived.push_back(for_node(other * node + place, here));
    hops.over_nodes.received.push_back(std::ssize(arrived.back()));
    through += std::ssize(arrived.back());
  }
  nn::index_rows(hops.over_nodes.routing, sources[at_index(rank)].tokens);

  hops.place.resize(sources.size());
  for (size_t source = 0; source < sources.size(); ++source) hops.place[source].assign(at_index(sources[source].tokens), -1);
  for (int peer = 0; peer < node; ++peer) {
    int64_t begin = 0, sent = 0, received = 0;
    for (int other = 0; other < nodes; ++other) {
      const std::vector<int64_t>& rows = arrived[at_index(other)];
      for (const int64_t row : for_rank(other * node + place, here * node + peer)) {
        const auto found = std::ranges::lower_bound(rows, row);
        hops.inside_node.routing.rows.push_back(begin + (found - rows.begin()));
        ++sent;
      }
      begin += std::ssize(rows);
      const auto source = at_index(other * node + peer);
      for (const int64_t row : for_rank(other * node + peer, rank)) hops.place[source][at_index(row)] = hops.rows + received++;
    }
    hops.inside_node.sent.push_back(sent);
    hops.inside_node.received.push_back(received);
    hops.rows += received;
  }
  nn::index_rows(hops.inside_node.routing, through);
  return hops;
}

}  // namespace lockstep::parallel
