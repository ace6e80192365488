// lockstep show program|layout|block|context|memory|traffic|schedules: what a configuration will run, without running it.
#include <algorithm>
#include <map>

#include "apps/lockstep/ranks.h"
#include "apps/lockstep/show_context.h"
#include "apps/lockstep/show_json.h"
#include "apps/lockstep/show_step.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"
#include "lockstep/plan/bubble.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/moves.h"
#include "lockstep/program/predict/rank_map.h"
#include "lockstep/program/render/draw_tokens.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::apps {
namespace {

using program::Layout;
using program::Program;

constexpr size_t kMaxActionsInFull = 40;
constexpr size_t kMaxBuckets = 12;
constexpr int kColumns = 120;
constexpr int kMaxRanksPerNode = 1 << 20;

int ranks_per_node(const CommandLine& command_line) {
  const int64_t wanted = command_line.integer("ranks-per-node", Shown{}.ranks_per_node);
  if (wanted >= 1 && wanted <= kMaxRanksPerNode) return static_cast<int>(wanted);
  reject("LS1006", cat("--ranks-per-node ", command_line.value("ranks-per-node"), " is out of range"),
         cat("write a number from 1 to ", kMaxRanksPerNode));
}

// Held against memory.device_limit where it is set; else on the CPU against what this host has left, as `lockstep train` would with
// the same flags. A plan for GPUs without a limit is held against nothing: they are elsewhere. Empty where all fits.
std::vector<Shortfall> shortfalls(const CommandLine& command_line, const config::RunConfig& config, const Layout& layout,
                                  const Program& program) {
  std::vector<Shortfall> found;
  program::RankMemory bytes(layout, program);
  for (const plan::Room& room : plan::rooms_here(config, ranks_here(command_line, layout.mesh.world_size()))) {
    if (room.kind == plan::Room::Kind::kHost && config.train.device == config::Device::kCuda) continue;
    const plan::Need need = plan::need_of(config, layout, bytes, room);
    if (!plan::fits(need, room))
      found.push_back({room, need, plan::ways_out(config, layout, {.rank = need.worst, .room = room})});
  }
  return found;
}

Shown prepare(const CommandLine& command_line, const std::string& what) {
  config::LoadedConfig loaded = config::load_config(command_line.config_files(), command_line.overrides);
  const int ranks = command_line.ranks.value_or(config::ranks_wanted(loaded.config));
  Shown shown;
  shown.layout = program::layout_of(loaded, ranks);
  check_extent(command_line, what, shown.layout);
  shown.program = program::build_program(shown.layout);
  if (what == "context") shown.context = context_question(command_line, loaded.config, shown.layout);
  if (what == "memory") shown.shortfalls = shortfalls(command_line, loaded.config, shown.layout, shown.program);
  shown.timeline = command_line.has("timeline");
  shown.ranks_per_node = ranks_per_node(command_line);
  const int64_t rank = command_line.integer("rank", -1);
  if (command_line.has("rank") && (rank < 0 || rank >= ranks))
    reject("LS1006", cat("--rank ", command_line.value("rank"), ": the layout has ranks 0 to ", ranks - 1), "-n N is the number of ranks");
  for (int i = 0; i < ranks; ++i)
    if (rank < 0 || rank == i) shown.ranks.push_back(i);
  return shown;
}

std::string header(const Shown& shown) {
  return cat(arch::describe(shown.layout.model), "\n", program::describe(shown.layout), "\n\n");
}

std::string ranks_text(int first, int last) {
  return first == last ? cat("rank ", first) : cat("ranks ", first, "..", last);
}

std::string block_page(const Shown& shown, const CommandLine&) {
  const std::string tokens = program::draw_tokens(shown.layout, shown.ranks[0]);
  return cat("block 0 on rank ", shown.ranks[0], "\n\n", program::draw_block(shown.layout, shown.ranks[0]), tokens.empty() ? "" : "\n", tokens);
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
    const std::string first = program::layer_label(buckets[i].units.front(), num_layers);
    const std::string last = program::layer_label(buckets[i].units.back(), num_layers);
    text += cat("  ", pad_left(cat(i), 3), "  ", pad_right(first == last ? first : cat(first, "..", last), 14),
                pad_left(format_bytes(4.0 * static_cast<double>(buckets[i].numel())), 10), "\n");
  }
  return text;
}

// Ranks that do the same are shown once.
std::string program_page(const Shown& shown, const CommandLine& command_line) {
  std::string text;
  for (size_t i = 0; i < shown.ranks.size();) {
    const auto& actions = shown.program.list(shown.ranks[i]);
    size_t end = i + 1;
    while (end < shown.ranks.size() && shown.program.same_list(shown.ranks[i], shown.ranks[end])) ++end;
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

std::string shortfalls_text(const Layout& layout, const std::vector<Shortfall>& shortfalls) {
  std::string text;
  for (const Shortfall& one : shortfalls) {
    text += cat("\ndoes not fit: ", plan::shortage_line(layout, one.need, one.room), "; `lockstep train` refuses this\n");
    text += plan::ways_text(one.ways, one.room);
    if (one.room.kind == plan::Room::Kind::kHost)
      text += "for GPUs: --train.device=cuda; for another machine: --memory.device_limit=SIZE, what a rank may have there\n";
  }
  return text;
}

// Ranks that hold the same bytes are shown once.
std::string memory_page(const Shown& shown, const CommandLine&) {
  std::string text;
  std::map<std::array<int64_t, program::kNumMemoryCategories>, std::vector<int>> alike;
  std::vector<std::vector<int>*> kinds;  // in the order of their first ranks
  program::RankMemory memory(shown.layout, shown.program);
  std::map<const program::MemoryBytes*, std::vector<int>*> of_class;
  for (int rank : shown.ranks) {
    const program::MemoryBytes& bytes = memory.of(rank);
    std::vector<int>*& ranks = of_class[&bytes];
    if (ranks == nullptr) ranks = &alike[bytes.bytes];
    if (ranks->empty()) kinds.push_back(ranks);
    ranks->push_back(rank);
  }
  for (const std::vector<int>* ranks : kinds) {
    text += program::memory_table(shown.program, shown.layout, ranks->front());
    if (ranks->size() > 1) text += cat("the same on ", ranks_text((*ranks)[1], ranks->back()), "\n");
    if (shown.timeline) text += "\n" + program::draw_memory(shown.program, shown.layout, ranks->front());
    text += "\n";
  }
  return text + program::kept_table(shown.layout, shown.ranks.front()) + shortfalls_text(shown.layout, shown.shortfalls);
}

// Groups and servers where there is more than one way to arrange them, or where they were asked for.
std::string layout_page(const Shown& shown, const CommandLine& command_line) {
  const std::string text = program::layout_table(shown.program, shown.layout, shown.ranks);
  const bool several_axes = program::axis_groups(shown.layout, 1).size() > 1 || shown.layout.pipeline.ranks > 1;
  if (command_line.has("rank") || (!several_axes && !command_line.has("ranks-per-node"))) return text;
  return cat(text, "\n", program::groups_table(shown.layout), "\n",
             program::rank_map_page(shown.program, shown.layout, shown.ranks_per_node));
}

std::string traffic_page(const Shown& shown, const CommandLine& command_line) {
  const Layout& layout = shown.layout;
  const bool pipeline = layout.pipeline.ranks > 1;
  std::string text = program::ledger_tables(shown.program, layout, shown.ranks, command_line.has("full"));
  if (pipeline) text += program::stages_table(shown.program, layout, shown.ranks) + "\n";
  const std::vector<int> ranks = ranks_of_summary(shown);
  for (const int rank : ranks)
    if (const std::string moves = program::moves_table(shown.program, layout, rank); !moves.empty()) text += moves + "\n";
  if (layout.shares_states()) return text + program::sharding_summary(shown.program, layout, ranks);
  // Without data parallelism no gradient is synchronised.
  const bool model_alone = layout.mesh.degree(layout.tokens()) == 1 && layout.mesh.world_size() > 1;
  // No server sums gradients of experts.
  return model_alone || layout.model.has_experts() ? text : text + program::traffic_summary(layout, ranks);
}

std::string context_page(const Shown& shown, const CommandLine&) {
  return program::draw_context(shown.layout, shown.context);
}

std::string schedules_page(const Shown& shown, const CommandLine&) {
  const program::Pipeline& pipeline = shown.layout.pipeline;
  return plan::schedule_table(pipeline.ranks, static_cast<int>(shown.layout.num_microbatches()), std::max(2, pipeline.virtual_stages));
}

struct Page {
  std::string_view what;
  std::string (*text)(const Shown&, const CommandLine&);
  bool headed = true;  // below model and layout
};
constexpr Page kPages[] = {{"program", program_page}, {"layout", layout_page},   {"block", block_page},
                           {"context", context_page}, {"memory", memory_page},   {"traffic", traffic_page},
                           {"schedules", schedules_page, false}};

const Page& page_of(const std::string& what) {
  std::vector<std::string> known;
  for (const Page& page : kPages) {
    if (page.what == what) return page;
    known.emplace_back(page.what);
  }
  reject("LS1004", cat("lockstep show '", what, "'"), cat("write one of ", join(known, ", ")));
}

}  // namespace

int verb_show(const CommandLine& command_line) {
  const std::string what = join(command_line.words(), " ");
  const Page& page = page_of(what);
  check_flags(command_line, what);
  const Shown shown = prepare(command_line, what);
  std::string text = page.headed && !command_line.json ? header(shown) : "";
  if (draws_step(command_line))
    text += step_page(command_line, shown.layout, shown.program);
  else
    text += command_line.json ? json_page(shown, what) : page.text(shown, command_line);
  print(text);
  return static_cast<int>(shown.shortfalls.empty() ? ExitCode::kOk : ExitCode::kOutOfMemory);
}

}  // namespace lockstep::apps
