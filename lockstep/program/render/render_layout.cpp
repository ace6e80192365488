// Who holds what, what moves there, and where the ranks should stand.
#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/moves.h"
#include "lockstep/program/predict/rank_map.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

constexpr MemoryCategory kCategories[] = {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                          MemoryCategory::kOptimizer, MemoryCategory::kActivations,
                                          MemoryCategory::kBuffers};

constexpr size_t kMostRows = 32;
constexpr size_t kMostGroups = 8;
constexpr int kMostNodes = 16;
constexpr int kMostRanks = 1024;  // whose traffic is summed

// What a server's ranks are of: "pp0..1 of dp0, pp0 of dp1"; the data coordinate where there are several.
std::string holds_text(const Layout& layout, const std::vector<int>& ranks) {
  const bool copies = layout.mesh.degree(layout.samples()) > 1;
  std::vector<std::pair<int, std::vector<int>>> found;  // copy, coordinates on pp
  for (const int rank : ranks) {
    const int copy = layout.mesh.group_rank(rank, layout.samples()), pp = layout.pipeline_rank(rank);
    auto entry = std::find_if(found.begin(), found.end(), [&](const auto& known) { return known.first == copy; });
    if (entry == found.end()) entry = found.insert(found.end(), {copy, {}});
    if (entry->second.empty() || entry->second.back() != pp) entry->second.push_back(pp);
  }
  std::vector<std::string> texts;
  for (const auto& [copy, stages] : found) {
    const std::string of = copies ? cat("copy ", copy) : "the model";
    texts.push_back(layout.pipeline.ranks == 1 ? of : cat("pp ", ranges_text(stages), " of ", of));
  }
  if (texts.size() > kMostGroups) {
    const size_t more = texts.size() - kMostGroups;
    texts.resize(kMostGroups);
    texts.push_back(cat("and ", more, " more"));
  }
  return join(texts, ", ");
}

std::string nodes_table(const Layout& layout, const RankMap& map) {
  std::vector<Row> rows = {{"server", "ranks", "holds"}};
  for (int node = 0; node < std::min(map.nodes(), kMostNodes); ++node) {
    const std::vector<int> ranks = map.ranks_on(node);
    rows.push_back({cat(node), ranges_text(ranks), holds_text(layout, ranks)});
  }
  const int left_out = map.nodes() - kMostNodes;
  return table(rows, 0, 1) + (left_out > 0 ? cat("... ", left_out, " more servers\n") : "");
}

// Which servers want one leaf switch.
std::string leaf_text(const Layout& layout, const RankMap& map) {
  const std::vector<std::vector<int>> copies = nodes_of_copies(layout, map);
  if (map.nodes() == 1) return "";
  if (std::all_of(copies.begin(), copies.end(), [](const auto& nodes) { return nodes.size() == 1; }))
    return "a copy of the model stays on one server\n";
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(copies.size(), kMostGroups); ++i) texts.push_back(cat("servers ", ranges_text(copies[i])));
  if (copies.size() > kMostGroups) texts.push_back(cat("and so on for ", copies.size() - kMostGroups, " more copies"));
  return cat("under one leaf switch each: ", join(texts, "; "), "\n");
}

std::string share(int64_t part, int64_t whole) {
  return cat(bytes_text(part), whole == 0 || part == 0 ? "" : cat(" (", (200 * part + whole) / (2 * whole), " %)"));
}

std::string traffic_table(const Program& program, const Layout& layout, const std::vector<RankMap>& maps) {
  if (layout.mesh.world_size() > kMostRanks) return "";
  std::vector<Row> rows = {{"axis", "sent in a step", "between servers", "in rank order"}};
  for (const AxisTraffic& axis : axis_traffic(layout, program, maps))
    rows.push_back({axis.axis, bytes_text(axis.sent), share(axis.between_nodes[0], axis.sent), share(axis.between_nodes[1], axis.sent)});
  return cat("\n", table(rows, 1, 3));
}

// "4..7 of 8"; of several ranks that share each "4..7 of 8, part 1 of 2".
std::string experts_text(const Layout& layout, int rank) {
  const arch::ExpertShard shard = layout.tensor_shard(rank).experts;
  const int64_t each = layout.model.experts.count / shard.ep, first = each * shard.ep_rank;
  return cat(first, "..", first + each - 1, " of ", layout.model.experts.count,
             shard.etp > 1 ? cat(", part ", shard.etp_rank, " of ", shard.etp) : "");
}

}  // namespace

std::string layers_text(const Layout& layout, int rank) {
  const auto label = [&](int first, int last) { return label_range(first, last, layout.num_layers()); };
  return join(stretches(layout.layers_of(rank), label), ", ");
}

std::string layout_table(const Program& program, const Layout& layout, const std::vector<int>& ranks) {
  const bool stages = layout.pipeline.ranks > 1;
  const size_t shown = std::min(kMostRows, ranks.size());
  const Domain domain = layout.dense_domain();
  const bool sharded = layout.shards() > 1, replicated = sharded && layout.mesh.degree(domain.copies) > 1;
  std::vector<Row> rows = {{"rank", "coordinates", "layers", "sequences"}};
  if (stages) rows[0].emplace_back("stages");
  if (sharded) rows[0].emplace_back("shard");
  if (replicated) rows[0].emplace_back("same shard on");
  const bool experts = layout.ep * layout.etp > 1;
  if (experts) rows[0].emplace_back("experts");
  const size_t first_number = rows[0].size();
  for (MemoryCategory category : kCategories) rows[0].emplace_back(category_name(category));
  rows[0].emplace_back("peak");
  RankMemory memory(layout, program);
  for (size_t i = 0; i < shown; ++i) {
    const int rank = ranks[i];
    const mesh::Range first = microbatch_samples(layout, rank, 0);
    const mesh::Range last = microbatch_samples(layout, rank, layout.num_microbatches() - 1);
    const char* server = layout.server_mode() && layout.owns_optimizer(rank) ? " (server)" : "";
    Row row = {cat(rank), layout.mesh.describe(rank) + server, layers_text(layout, rank),
               cat(first.begin, "..", last.end - 1)};
    if (stages) row.push_back(cat(rank_list(layout.pipeline.stages_of(layout.pipeline_rank(rank))), " of ", layout.pipeline.stages()));
    if (sharded)
      row.push_back(cat(layout.shard(rank), " of ", layout.shards(), " on ranks ",
                        rank_list(layout.mesh.group(rank, domain.shard))));
    if (replicated) row.push_back(cat("ranks ", rank_list(layout.mesh.group(rank, domain.copies))));
    if (experts) row.push_back(experts_text(layout, rank));
    const MemoryBytes& bytes = memory.of(rank);
    for (MemoryCategory category : kCategories) row.push_back(bytes_text(bytes[category]));
    row.push_back(bytes_text(bytes.peak));
    rows.push_back(std::move(row));
  }
  return table(rows, first_number, std::size(kCategories) + 1) +
         (shown < ranks.size() ? cat("... ", ranks.size() - shown, " more ranks; --rank R shows any of them\n") : "");
}

std::string moves_table(const Program& program, const Layout& layout, int rank) {
  const Moves moves = predict_moves(layout, program, rank);
  if (moves.empty()) return "";
  std::vector<Row> rows = {{"what", "way", "moves", "bytes"}};
  for (const auto& [key, totals] : moves)
    rows.push_back({key.first, route_name(key.second), cat(totals.count), decimal_bytes(totals.bytes)});
  const HostPlan plan = host_plan(layout, rank);
  std::string text = cat("between device, host and disk, rank ", rank, "\n", table(rows, 2, 2));
  if (plan.disk > 0)
    text += cat("on disk: the states of ", plan.disk_units.size(), " units, ", decimal_bytes(plan.disk),
                "; on the host ", decimal_bytes(plan.host()), "\n");
  return text;
}

std::string groups_table(const Layout& layout) {
  std::vector<Row> rows = {{"axis", "groups", "of ranks"}};
  for (const AxisGroups& axis : axis_groups(layout, kMostGroups)) {
    std::vector<std::string> texts;
    for (const std::vector<int>& group : axis.groups) texts.push_back(rank_list(group));
    if (const int more = axis.count - static_cast<int>(axis.groups.size()); more > 0) texts.push_back(cat("and ", more, " more"));
    rows.push_back({axis.axis, cat(axis.count, " x ", axis.groups[0].size()), join(texts, " | ")});
  }
  return rows.size() == 1 ? "" : table(rows, 0, 0);
}

std::string rank_map_page(const Program& program, const Layout& layout, int ranks_per_node) {
  if (layout.mesh.world_size() == 1) return "";
  const std::vector<RankMap> maps = {placed_by_axis(layout, ranks_per_node), placed_in_order(layout, ranks_per_node)};
  std::string text = cat("where to put them, with ", ranks_per_node, ranks_per_node == 1 ? " place" : " places", " on a server\n");
  if (const int empty = maps[0].empty_places(); empty > 0)
    text += cat("so that no tp group is cut, ", empty, empty == 1 ? " place of each stays empty\n" : " places of each stay empty\n");
  return text + nodes_table(layout, maps[0]) + leaf_text(layout, maps[0]) + traffic_table(program, layout, maps);
}

}  // namespace lockstep::program
