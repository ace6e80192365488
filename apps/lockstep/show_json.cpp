#include "apps/lockstep/show_json.h"

#include <algorithm>

#include "apps/lockstep/show_context.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/rank_map.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/render/draw_tokens.h"
#include "lockstep/program/render/render.h"

namespace lockstep::apps {
namespace {

using program::Layout;

// What formulas say of one rank: of a pipeline in "of_ranks", else in the object itself.
void add_rank(OrderedJson& json, const Shown& shown, int rank, const OrderedJson& of_rank) {
  if (shown.layout.pipeline.ranks == 1) return json.update(of_rank);
  OrderedJson entry = {{"rank", rank}};
  entry.update(of_rank);
  json["of_ranks"].push_back(entry);
}

OrderedJson categories_json(const program::MemoryArray& bytes) {
  OrderedJson json;
  for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
    json[std::string(category_name(static_cast<program::MemoryCategory>(i)))] = bytes[i];
  return json;
}

std::string text_of(const Shown& shown, const program::Action& action) {
  return program::action_text(action, shown.program.buckets, shown.layout.num_layers());
}

// An object per action: the moment of it at which the device holds most, and its end.
OrderedJson timeline_json(const Shown& shown, int rank) {
  const program::MemoryTimeline timeline = program::memory_timeline(shown.layout, shown.program, rank);
  OrderedJson json = OrderedJson::array();
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    json.push_back({{"action", text_of(shown, shown.program.list(rank)[i])},
                    {"within", categories_json(timeline.points[i].within)},
                    {"after", categories_json(timeline.points[i].after)}});
  }
  return json;
}

// What draw_tokens() draws. "rows" of a call: by sender, by receiver, in the order of "ranks".
OrderedJson tokens_json(const Layout& layout, const program::TokenRoutes& routes) {
  const int shown = std::min(program::kDrawnRanks, static_cast<int>(routes.ranks.size()));
  OrderedJson json = {{"of_ranks", routes.ranks.size()}, {"own_rows", routes.own}, {"assignments", routes.assignments}};
  if (routes.slots > 0) json["slots"] = routes.slots;
  json["at_experts"] = routes.at_experts;
  for (int member = 0; member < shown; ++member) {
    const mesh::Range experts = program::experts_of(layout, routes, member);
    json["ranks"].push_back({{"rank", routes.ranks[static_cast<size_t>(member)]}, {"experts", {experts.begin, experts.end}}});
  }
  for (const program::TokenHop& hop : routes.hops) {
    OrderedJson rows = OrderedJson::array();
    for (int from = 0; from < shown; ++from) {
      OrderedJson sent = OrderedJson::array();
      for (int to = 0; to < shown; ++to) sent.push_back(hop.sent(from, to));
      rows.push_back(sent);
    }
    json["calls"].push_back({{"part", hop.part}, {"collective", program::collective_name(hop.collective)}, {"axis", hop.over},
                             {"of_a_rank", hop.of_a_rank()}, {"decided_by_tokens", hop.decided_by_tokens}, {"rows", rows}});
  }
  return json;
}

OrderedJson rank_json(const Shown& shown, program::RankMemory& memory, int rank, const std::string& what) {
  const Layout& layout = shown.layout;
  OrderedJson json = {{"rank", rank}};
  if (what == "program") {
    for (const program::Action& action : shown.program.list(rank)) json["actions"].push_back(text_of(shown, action));
  } else if (what == "layout" || what == "traffic") {
    json["coordinates"] = layout.mesh.describe(rank);
    const std::vector<arch::LayerSpec> layers = arch::layer_table(layout.model);
    for (const int layer : layout.layers_of(rank)) json["layers"].push_back(layers[static_cast<size_t>(layer)].name);
    if (layout.pipeline.ranks > 1) json["stages"] = layout.pipeline.stages_of(layout.pipeline_rank(rank));
  }
  if (what == "layout") {
    if (layout.shards() > 1) {
      const program::Domain domain = layout.dense_domain();
      json["shard"] = {{"index", layout.shard(rank)},
                       {"of", layout.shards()},
                       {"ranks", layout.mesh.group(rank, domain.shard)},
                       {"same_on", layout.mesh.group(rank, domain.copies)}};
    }
    json["sequences"] = {program::microbatch_samples(layout, rank, 0).begin,
                         program::microbatch_samples(layout, rank, layout.num_microbatches() - 1).end};
  }
  if (what == "layout" || what == "memory") {
    const program::MemoryBytes& bytes = memory.of(rank);
    json["bytes"] = categories_json(bytes.bytes);
    json["bytes"].update({{"total", bytes.total()}, {"peak", bytes.peak}});
  }
  if (what == "memory") {
    if (shown.layout.device_limit > 0) json["device_limit"] = shown.layout.device_limit;
    if (shown.timeline) json["timeline"] = timeline_json(shown, rank);
  }
  if (what == "block") {
    json["block"] = split(program::draw_block(layout, rank), '\n');
    if (const program::TokenRoutes routes = program::token_routes(layout, rank); !routes.ranks.empty()) json["tokens"] = tokens_json(layout, routes);
  }
  if (what != "traffic") return json;
  json["parameters"] = program::parameters_of(layout, rank);
  json["calls"] = OrderedJson::array();
  for (const auto& [text, key, entry] : program::predict_ledger(layout, shown.program, rank).printed()) {
    OrderedJson sent = OrderedJson::object();
    for (const auto& [peer, bytes] : entry.sent) sent[cat(peer)] = bytes;
    json["calls"].push_back({{"site", text},
                             {"collective", program::collective_name(key.collective)},
                             {"axis", key.axis},
                             {"algorithm", algorithm_name(key.algorithm)},
                             {"count", entry.count},
                             {"payload", entry.payload},
                             {"sent", sent}});
  }
  return json;
}

OrderedJson stages_json(const std::vector<program::StageTraffic>& stages) {
  OrderedJson json = OrderedJson::array();
  for (const program::StageTraffic& stage : stages)
    json.push_back({{"zero", stage.zero},
                    {"gathers", stage.gathers},
                    {"reduces", stage.reduces},
                    {"formula_bytes", stage.formula_bytes},
                    {"predicted_bytes", stage.predicted_bytes}});
  return json;
}

// Of each rank of the summary; alone it stands in the object itself.
OrderedJson sharding_json(const Shown& shown) {
  const Layout& layout = shown.layout;
  const int replicas = layout.mesh.degree(layout.dense_domain().copies);
  const std::vector<int> ranks = ranks_of_summary(shown);
  const std::vector<std::vector<program::StageTraffic>> traffic = program::sharding_traffic(layout, ranks);
  OrderedJson json = {{"shards", layout.shards()},
                      {"replicas", replicas},
                      {"microbatches", layout.num_microbatches()},
                      {"zero", layout.zero}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    OrderedJson of_rank = {{"stages", stages_json(traffic[i])}};
    if (replicas > 1) {
      const program::ReplicaTraffic sums = program::replica_traffic(shown.program, layout, ranks[i]);
      of_rank["between_replicas"] = {{"formula_bytes", sums.formula_bytes}, {"predicted_bytes", sums.predicted_bytes}};
    }
    add_rank(json, shown, ranks[i], of_rank);
  }
  return json;
}

OrderedJson synchronisation_json(const Shown& shown) {
  const int n = shown.layout.mesh.degree(shown.layout.tokens());
  OrderedJson json = OrderedJson::object();
  for (const int rank : ranks_of_summary(shown)) {
    OrderedJson of_rank;
    for (const auto& [name, size] : {std::pair{"fp32", 4.0}, {"fp16", 2.0}}) {
      const double bytes = size * static_cast<double>(program::parameters_of(shown.layout, rank));
      of_rank[name] = {{"gradient_bytes", bytes},
                       {"ring_link_bytes", program::ring_link_bytes(bytes, n)},
                       {"server_link_bytes", program::server_link_bytes(bytes, n)}};
    }
    add_rank(json, shown, rank, of_rank);
  }
  return json;
}

OrderedJson groups_json(const Layout& layout) {
  OrderedJson json = OrderedJson::object();
  for (const program::AxisGroups& axis : program::axis_groups(layout)) json[axis.axis] = axis.groups;
  return json;
}

OrderedJson servers_json(const Shown& shown) {
  const program::RankMap map = program::placed_by_axis(shown.layout, shown.ranks_per_node);
  OrderedJson json = {{"ranks_per_node", shown.ranks_per_node}, {"of_rank", OrderedJson::array()}};
  for (int rank = 0; rank < shown.layout.mesh.world_size(); ++rank) json["of_rank"].push_back(map.node_of(rank));
  json["of_copies"] = program::nodes_of_copies(shown.layout, map);
  for (const program::AxisTraffic& axis : program::axis_traffic(shown.layout, shown.program, {map}))
    json["traffic"].push_back({{"axis", axis.axis}, {"sent", axis.sent}, {"between_servers", axis.between_nodes[0]}});
  return json;
}

OrderedJson way_json(const plan::WayOut& way) {
  OrderedJson set = OrderedJson::object();
  for (const config::Override& flag : way.set) set[flag.key] = flag.value;
  OrderedJson json = {{"change", way.change}, {"set", set}};
  if (way.ranks > 0) json["ranks"] = way.ranks;
  json.update({{"needed", way.peak}, {"saved", way.saved}, {"slower", way.slower}, {"same_numbers", way.same_numbers()}, {"fits", way.fits}});
  return json;
}

OrderedJson shortfalls_json(const std::vector<Shortfall>& shortfalls) {
  OrderedJson json = OrderedJson::array();
  for (const Shortfall& one : shortfalls) {
    OrderedJson ways = OrderedJson::array();
    for (const plan::WayOut& way : one.ways) ways.push_back(way_json(way));
    json.push_back({{"of", one.room.kind == plan::Room::Kind::kHost ? "host" : "device_limit"},
                    {"needed", one.need.total},
                    {"left", one.room.bytes},
                    {"source", one.room.source},
                    {"ways_out", ways}});
  }
  return json;
}

}  // namespace

std::vector<int> ranks_of_summary(const Shown& shown) {
  return shown.ranks.size() == 1 ? shown.ranks : program::stage_ranks(shown.layout);
}

std::string json_page(const Shown& shown, const std::string& what) {
  OrderedJson json = {{"what", what},
                      {"world_size", shown.layout.mesh.world_size()},
                      {"model", arch::describe(shown.layout.model)},
                      {"layout", program::describe(shown.layout)},
                      {"ranks", OrderedJson::array()}};
  program::RankMemory memory(shown.layout, shown.program);
  for (int rank : shown.ranks) json["ranks"].push_back(rank_json(shown, memory, rank, what));
  if (what == "layout" && shown.layout.mesh.world_size() > 1) {
    json["groups"] = groups_json(shown.layout);
    json["servers"] = servers_json(shown);
  }
  if (what == "context") json["context"] = context_json(shown.layout, shown.context);
  if (what == "memory") {
    json["fits"] = shown.shortfalls.empty();
    json["shortfalls"] = shortfalls_json(shown.shortfalls);
  }
  if (what == "traffic") {
    json["alike"] = program::alike_ranks(shown.program, shown.layout, shown.ranks, false);
    if (!shown.layout.model.has_experts()) json["synchronisation"] = synchronisation_json(shown);  // no server sums gradients of experts
    if (shown.layout.shares_states()) json["sharding"] = sharding_json(shown);
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep::apps
