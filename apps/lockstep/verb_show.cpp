// lockstep show program|layout|block|memory|traffic|schedules: what a configuration will run, without running it.
#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/lockstep/show_step.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"
#include "lockstep/program/job.h"
#include "lockstep/program/memory.h"
#include "lockstep/program/moves.h"
#include "lockstep/program/predict.h"
#include "lockstep/program/rank_map.h"
#include "lockstep/program/render.h"
#include "lockstep/program/traffic.h"

namespace lockstep::apps {
namespace {

using program::Layout;
using program::Program;

constexpr size_t kMaxActionsInFull = 40;
constexpr size_t kMaxBuckets = 12;
constexpr int kColumns = 120;
constexpr int kMaxRanksPerNode = 1 << 20;

// The configuration; without a file, what nobody set is chosen to fit the ranks and the model.
config::LoadedConfig configuration(const CommandLine& command_line, int ranks) {
  if (!command_line.config_files().empty()) return load_config(command_line);
  config::LoadedConfig loaded = config::load_config({}, command_line.overrides);
  config::TrainSection& train = loaded.config.train;
  const auto is_default = [&](const char* key) { return loaded.origin[key] == "default"; };
  if (is_default("train.micro_batch") && is_default("train.global_batch")) train.micro_batch = 1;
  if (is_default("train.global_batch"))
    train.global_batch = config::data_parallel_size(loaded.config, ranks) * train.micro_batch;
  if (is_default("train.seq_len") && loaded.config.data.tokenizer.empty()) {
    train.seq_len = std::min(train.seq_len, arch::resolve_model(loaded.config.model).max_seq_len);
  }
  return loaded;
}

struct Shown {
  Layout layout;
  Program program;
  std::vector<int> ranks;  // those asked for: --rank R, or all
  bool timeline = false;   // --timeline
  int ranks_per_node = 8;  // --ranks-per-node
};

int ranks_per_node(const CommandLine& command_line) {
  const int64_t wanted = command_line.integer("ranks-per-node", Shown{}.ranks_per_node);
  if (wanted >= 1 && wanted <= kMaxRanksPerNode) return static_cast<int>(wanted);
  throw ConfigError({.code = "LS1006",
                     .what = cat("--ranks-per-node ", command_line.value("ranks-per-node"), " is out of range"),
                     .way_out = cat("write a number from 1 to ", kMaxRanksPerNode)});
}

Shown prepare(const CommandLine& command_line) {
  int ranks = command_line.ranks.value_or(0);
  if (ranks == 0) {
    const config::LoadedConfig loaded = config::load_config(command_line.config_files(), command_line.overrides);
    ranks = config::ranks_wanted(loaded.config);
  }
  Shown shown;
  shown.layout = program::layout_of(configuration(command_line, ranks), ranks);
  shown.program = program::build_program(shown.layout);
  shown.timeline = command_line.has("timeline");
  shown.ranks_per_node = ranks_per_node(command_line);
  const int64_t rank = command_line.integer("rank", -1);
  if (command_line.has("rank") && (rank < 0 || rank >= ranks)) {
    throw ConfigError({.code = "LS1006",
                       .what = cat("--rank ", command_line.value("rank"), ": the layout has ranks 0 to ", ranks - 1),
                       .way_out = cat("-n N is the number of ranks")});
  }
  for (int i = 0; i < ranks; ++i) {
    if (rank < 0 || rank == i) shown.ranks.push_back(i);
  }
  return shown;
}

std::string header(const Shown& shown) {
  return cat(arch::describe(shown.layout.model), "\n", program::describe(shown.layout), "\n\n");
}

std::string ranks_text(int first, int last) {
  return first == last ? cat("rank ", first) : cat("ranks ", first, "..", last);
}

std::string bucket_list(const Shown& shown, bool full) {
  const int num_layers = static_cast<int>(arch::layer_table(shown.layout.model).size());
  const std::vector<program::Bucket>& buckets = shown.program.buckets;
  std::string text = "\nbuckets in the order in which backward fills them\n";
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!full && buckets.size() > kMaxBuckets && i == kMaxBuckets / 2) {
      const size_t left_out = buckets.size() - kMaxBuckets;
      text += cat("  ...  ", left_out, " more\n");
      i += left_out;
    }
    const std::string first = program::layer_label(buckets[i].layers.front(), num_layers);
    const std::string last = program::layer_label(buckets[i].layers.back(), num_layers);
    text += cat("  ", pad_left(cat(i), 3), "  ", pad_right(first == last ? first : cat(first, "..", last), 14),
                pad_left(format_bytes(4.0 * static_cast<double>(buckets[i].numel())), 10), "\n");
  }
  return text;
}

// Ranks that do the same are shown once.
std::string program_page(const Shown& shown, const CommandLine& command_line) {
  std::string text = header(shown);
  for (size_t i = 0; i < shown.ranks.size();) {
    const auto& actions = shown.program.ranks[static_cast<size_t>(shown.ranks[i])];
    size_t end = i + 1;
    while (end < shown.ranks.size() && shown.program.ranks[static_cast<size_t>(shown.ranks[end])] == actions) ++end;
    const bool compact = !command_line.has("full") && actions.size() > kMaxActionsInFull;
    text += cat(
        ranks_text(shown.ranks[i], shown.ranks[end - 1]), "\n  ",
        program_text(shown.program, shown.layout, shown.ranks[i], {.width = kColumns, .indent = 2, .compact = compact}),
        "\n");
    i = end;
  }
  if (shown.layout.mesh.world_size() > 1) text += bucket_list(shown, command_line.has("full"));
  if (command_line.has("draw")) text += "\n" + program::draw_program(shown.program, shown.layout);
  return text;
}

// Ranks that hold the same bytes are shown once.
std::string memory_page(const Shown& shown) {
  std::string text = header(shown);
  std::map<std::array<int64_t, program::kNumMemoryCategories>, std::vector<int>> alike;
  std::vector<std::vector<int>*> kinds;  // in the order of their first ranks
  for (int rank : shown.ranks) {
    std::vector<int>& ranks = alike[program::predict_memory(shown.layout, shown.program, rank).bytes];
    if (ranks.empty()) kinds.push_back(&ranks);
    ranks.push_back(rank);
  }
  for (const std::vector<int>* ranks : kinds) {
    text += program::memory_table(shown.program, shown.layout, ranks->front());
    if (ranks->size() > 1) text += cat("the same on ", ranks_text((*ranks)[1], ranks->back()), "\n");
    if (shown.timeline) text += "\n" + program::draw_memory(shown.program, shown.layout, ranks->front());
    text += "\n";
  }
  return text + program::kept_table(shown.layout, shown.ranks.front());
}

// Groups and servers where there is more than one way to arrange them, or where they were asked for.
std::string layout_page(const Shown& shown, const CommandLine& command_line) {
  const std::string text = header(shown) + program::layout_table(shown.program, shown.layout, shown.ranks);
  const bool several_axes = program::axis_groups(shown.layout).size() > 1 || shown.layout.pipeline.ranks > 1;
  if (command_line.has("rank") || (!several_axes && !command_line.has("ranks-per-node"))) return text;
  return cat(text, "\n", program::groups_table(shown.layout), "\n",
             program::rank_map_page(shown.program, shown.layout, shown.ranks_per_node));
}

std::string traffic_page(const Shown& shown, const CommandLine& command_line) {
  std::string text = header(shown);
  const bool one = command_line.has("rank");
  const bool server = shown.layout.data_parallel == config::DataParallel::kParameterServer;
  // One rank of each kind: in a ring all are alike, on a parameter server all workers.
  const size_t kinds = one || !server ? 1 : std::min<size_t>(2, shown.ranks.size());
  for (size_t i = 0; i < kinds; ++i) {
    text += program::ledger_table(shown.program, shown.layout, shown.ranks[i], command_line.has("full")) + "\n";
  }
  if (shown.ranks.size() > kinds) {
    const bool sharded = shown.layout.shards() > 1;
    const char* where = server    ? ""
                        : sharded ? ", each to the next rank of its groups"
                                  : ", each to the next rank of the ring";
    text += cat(ranks_text(shown.ranks[kinds], shown.ranks.back()), sharded ? ": as on rank " : ": gradients as on rank ",
                shown.ranks[kinds - 1], where, "\n\n");
  }
  if (const std::string moves = program::moves_table(shown.program, shown.layout, shown.ranks[0]); !moves.empty())
    text += moves + "\n";
  if (shown.layout.shards() > 1) return text + program::sharding_summary(shown.program, shown.layout);
  // Without data parallelism no gradient is synchronised.
  const bool tensor_alone = shown.layout.mesh.degree(mesh::kDataAxes) == 1 && shown.layout.mesh.world_size() > 1;
  return tensor_alone ? text : text + program::traffic_summary(shown.layout);
}

OrderedJson bytes_json(const program::MemoryBytes& bytes) {
  OrderedJson json;
  for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
    const auto category = static_cast<program::MemoryCategory>(i);
    json[std::string(category_name(category))] = bytes[category];
  }
  json["total"] = bytes.total();
  json["peak"] = bytes.peak;
  return json;
}

OrderedJson categories_json(const program::MemoryArray& bytes) {
  OrderedJson json;
  for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
    json[std::string(category_name(static_cast<program::MemoryCategory>(i)))] = bytes[i];
  return json;
}

// An object per action: the moment of it at which the device holds most, and its end.
OrderedJson timeline_json(const Shown& shown, int rank) {
  const program::MemoryTimeline timeline = program::memory_timeline(shown.layout, shown.program, rank);
  const int num_layers = static_cast<int>(arch::layer_table(shown.layout.model).size());
  OrderedJson json = OrderedJson::array();
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    const program::Action& action = shown.program.ranks[static_cast<size_t>(rank)][i];
    json.push_back({{"action", program::action_text(action, shown.program.buckets, num_layers)},
                    {"within", categories_json(timeline.points[i].within)},
                    {"after", categories_json(timeline.points[i].after)}});
  }
  return json;
}

OrderedJson rank_json(const Shown& shown, int rank, const std::string& what) {
  const Layout& layout = shown.layout;
  const int num_layers = static_cast<int>(arch::layer_table(layout.model).size());
  OrderedJson json = {{"rank", rank}};
  if (what == "program") {
    for (const program::Action& action : shown.program.ranks[static_cast<size_t>(rank)]) {
      json["actions"].push_back(program::action_text(action, shown.program.buckets, num_layers));
    }
  } else if (what == "layout") {
    json["coordinates"] = layout.mesh.describe(rank);
    const std::vector<arch::LayerSpec> layers = arch::layer_table(layout.model);
    for (const int layer : layout.layers_of(rank)) json["layers"].push_back(layers[static_cast<size_t>(layer)].name);
    if (layout.pipeline.ranks > 1) json["stages"] = layout.pipeline.stages_of(layout.pipeline_rank(rank));
    if (layout.shards() > 1) {
      json["shard"] = {{"index", layout.shard(rank)},
                       {"of", layout.shards()},
                       {"ranks", layout.mesh.group(rank, program::kShardAxis)},
                       {"same_on", layout.mesh.group(rank, program::kReplicateAxis)}};
    }
    json["sequences"] = {program::microbatch_samples(layout, rank, 0).begin,
                         program::microbatch_samples(layout, rank, layout.num_microbatches() - 1).end};
  }
  if (what == "layout" || what == "memory") {
    json["bytes"] = bytes_json(program::predict_memory(layout, shown.program, rank));
  }
  if (what == "memory") {
    if (shown.layout.device_limit > 0) json["device_limit"] = shown.layout.device_limit;
    if (shown.timeline) json["timeline"] = timeline_json(shown, rank);
  }
  if (what == "block") json["block"] = split(program::draw_block(layout, rank), '\n');
  if (what != "traffic") return json;
  json["calls"] = OrderedJson::array();
  const program::Ledger ledger = program::predict_ledger(layout, shown.program, rank);
  for (const auto& [key, entry] : ledger.entries()) {
    OrderedJson sent = OrderedJson::object();
    for (const auto& [peer, bytes] : entry.sent) sent[cat(peer)] = bytes;
    json["calls"].push_back({{"site", key.site},
                             {"collective", collective_name(key.collective)},
                             {"axis", key.axis},
                             {"algorithm", algorithm_name(key.algorithm)},
                             {"count", entry.count},
                             {"payload", entry.payload},
                             {"sent", sent}});
  }
  return json;
}

OrderedJson sharding_json(const Shown& shown) {
  const Layout& layout = shown.layout;
  const int replicas = layout.mesh.degree(mesh::Axis::kDpReplicate);
  OrderedJson json = {{"shards", layout.shards()},
                      {"replicas", replicas},
                      {"microbatches", layout.num_microbatches()},
                      {"zero", layout.zero},
                      {"stages", OrderedJson::array()}};
  for (const program::StageTraffic& stage : program::sharding_traffic(layout))
    json["stages"].push_back({{"zero", stage.zero},
                              {"gathers", stage.gathers},
                              {"reduces", stage.reduces},
                              {"formula_bytes", stage.formula_bytes},
                              {"predicted_bytes", stage.predicted_bytes}});
  if (replicas == 1) return json;
  const program::ReplicaTraffic sums = program::replica_traffic(shown.program, layout);
  json["between_replicas"] = {{"formula_bytes", sums.formula_bytes}, {"predicted_bytes", sums.predicted_bytes}};
  return json;
}

OrderedJson groups_json(const Layout& layout) {
  OrderedJson json = OrderedJson::object();
  for (const program::AxisGroups& axis : program::axis_groups(layout)) json[axis.axis] = axis.groups;
  return json;
}

OrderedJson servers_json(const Shown& shown) {
  const program::RankMap map = program::placed_by_axis(shown.layout, shown.ranks_per_node);
  OrderedJson json = {{"ranks_per_node", shown.ranks_per_node}, {"of_rank", map.node}};
  json["of_copies"] = program::nodes_of_copies(shown.layout, map);
  for (const program::AxisTraffic& axis : program::axis_traffic(shown.layout, shown.program, {map}))
    json["traffic"].push_back({{"axis", axis.axis}, {"sent", axis.sent}, {"between_servers", axis.between_nodes[0]}});
  return json;
}

std::string json_page(const Shown& shown, const std::string& what) {
  OrderedJson json = {{"what", what},
                      {"world_size", shown.layout.mesh.world_size()},
                      {"model", arch::describe(shown.layout.model)},
                      {"layout", program::describe(shown.layout)},
                      {"ranks", OrderedJson::array()}};
  for (int rank : shown.ranks) json["ranks"].push_back(rank_json(shown, rank, what));
  if (what == "layout" && shown.layout.mesh.world_size() > 1) {
    json["groups"] = groups_json(shown.layout);
    json["servers"] = servers_json(shown);
  }
  if (what == "traffic") {
    const int n = shown.layout.mesh.degree(mesh::kDataAxes);
    for (const auto& [name, size] : {std::pair{"fp32", 4.0}, {"fp16", 2.0}}) {
      const double bytes = size * static_cast<double>(arch::num_parameters(shown.layout.model));
      json["synchronisation"][name] = {{"gradient_bytes", bytes},
                                       {"ring_link_bytes", program::ring_link_bytes(bytes, n)},
                                       {"server_link_bytes", program::server_link_bytes(bytes, n)}};
    }
  }
  if (what == "traffic" && shown.layout.shards() > 1) json["sharding"] = sharding_json(shown);
  return json.dump(2) + "\n";
}

}  // namespace

int verb_show(const CommandLine& command_line) {
  const std::vector<std::string> words = command_line.words();
  const std::string what = words.size() == 1 ? words[0] : "";
  if (what != "program" && what != "layout" && what != "block" && what != "memory" && what != "traffic" &&
      what != "schedules") {
    throw ConfigError({.code = "LS1004",
                       .what = cat("lockstep show '", join(words, " "), "'"),
                       .way_out = "write one of program, layout, block, memory, traffic, schedules"});
  }
  check_drawing(command_line, what);
  const Shown shown = prepare(command_line);
  std::string text;
  if (draws_step(command_line)) {
    text = header(shown) + step_page(command_line, shown.layout, shown.program);
  } else if (what == "schedules") {
    text = schedules_page(shown.layout);
  } else if (command_line.json) {
    text = json_page(shown, what);
  } else if (what == "program") {
    text = program_page(shown, command_line);
  } else if (what == "layout") {
    text = layout_page(shown, command_line);
  } else if (what == "block") {
    text = header(shown) + cat("block 0 on ", ranks_text(shown.ranks[0], shown.ranks[0]), "\n\n") +
           program::draw_block(shown.layout, shown.ranks[0]);
  } else if (what == "memory") {
    text = memory_page(shown);
  } else {
    text = traffic_page(shown, command_line);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace lockstep::apps
