#include "lockstep/plan/ways_out.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/plan/step_cost.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/verify/build.h"

namespace lockstep::plan {

using program::Layout;
using program::Program;
using program::build_program;
using program::host_limit_problem;
using program::layout_problems;
using program::make_layout;
using program::predict_memory;

namespace {

using config::RunConfig;

constexpr int kMostTogether = 3;               // changes
constexpr int64_t kLargeProgram = 100'000;  // actions of all ranks: longer ones take seconds to plan in every way

struct Change {
  std::vector<config::Override> set{};
  int ranks = 0;  // another number of them
  std::string note{};
  bool same_numbers = true;
};

// As an override says it: "[optimizer,parameters]".
std::string list_of(const config::List<config::Offloaded>& offloaded) {
  std::vector<std::string> words;
  for (const config::Offloaded one : offloaded.list) words.push_back(config::name_of(one));
  return cat("[", join(words, ","), "]");
}

const config::Field& field_of(const std::string& key) {
  const size_t dot = key.find('.');
  const config::Field* field = config::find_field(key.substr(0, dot), key.substr(dot + 1));
  LOCKSTEP_CHECK(field != nullptr, "no field ", key);
  return *field;
}

RunConfig changed(RunConfig config, const Change& change) {
  for (const config::Override& set : change.set) {
    const config::Field& field = field_of(set.key);
    const auto complaint = field.assign(config, config::parse_value(field, set.value));
    LOCKSTEP_CHECK(!complaint, set.key, " = ", set.value);
  }
  return config;
}

// As it stands in a file: "parallel.pp = 4 and parallel.dp = 1".
std::string text_of(const RunConfig& config, const Change& change) {
  std::vector<std::string> parts;
  if (change.ranks > 0) parts.push_back(cat("-n ", change.ranks));
  const RunConfig to = changed(config, change);
  for (const config::Override& set : change.set) parts.push_back(cat(set.key, " = ", field_of(set.key).print(to)));
  return join(parts, " and ") + change.note;
}

void add_recompute(const RunConfig& config, std::vector<Change>& changes) {
  for (const config::Recompute more : {config::Recompute::kSelective, config::Recompute::kFull}) {
    const std::vector<config::Recompute>& now = config.memory.recompute.list;
    if (std::all_of(now.begin(), now.end(), [&](config::Recompute block) { return block == more; })) continue;
    changes.push_back({.set = {{"memory.recompute", config::name_of(more)}}});
  }
}

void add_zero(const RunConfig& config, std::vector<Change>& changes) {
  for (int stage = config::zero_stage(config) + 1; stage <= 3; ++stage) {
    changes.push_back({.set = {{"parallel.zero", cat(stage)}}});
    if (config.parallel.fsdp) changes.back().set.push_back({"parallel.fsdp", "false"});
  }
}

void add_sizes(const RunConfig& config, std::vector<Change>& changes) {
  for (int64_t size = config.train.micro_batch / 2; size >= 1; size /= 2)
    changes.push_back({.set = {{"train.micro_batch", cat(size)}}});
  constexpr int64_t kShortest = 64;
  for (int64_t size = config.train.seq_len / 2; size >= kShortest; size /= 2)
    changes.push_back({.set = {{"train.seq_len", cat(size)}}, .note = " (shorter sequences)", .same_numbers = false});
}

// To a GPU's host; on the CPU what is offloaded is on the same host.
void add_offload(const RunConfig& config, std::vector<Change>& changes) {
  using config::Offloaded;
  const config::List<Offloaded>& now = config.memory.offload;
  if (config.train.device == config::Device::kCpu) {
    if (now.list.empty()) return;
    Change none{.set = {{"memory.offload", "[]"}}};
    if (config.memory.host_limit.count > 0) none.set.push_back({"memory.host_limit", "0"});
    if (!config.memory.disk_path.empty()) none.set.push_back({"memory.disk_path", ""});
    return changes.push_back(std::move(none));
  }
  config::List<Offloaded> more = now;
  for (const Offloaded next : {Offloaded::kOptimizer, Offloaded::kParameters}) {
    if (more.has(next)) continue;
    more.list.push_back(next);
    changes.push_back({.set = {{"memory.offload", list_of(more)}}});
  }
  if (now.has(Offloaded::kActivations)) return;
  more = now;
  more.list.push_back(Offloaded::kActivations);
  changes.push_back({.set = {{"memory.offload", list_of(more)}}});
}

// Other degrees: the data axes give what tp and pp take, and with them the keys that were set.
Change other_degrees(const RunConfig& config, int tp, int pp, int data) {
  const config::ParallelSection& now = config.parallel;
  Change change;
  const auto set = [&](const char* key, int degree, int wanted) {
    if (degree != wanted) change.set.push_back({cat("parallel.", key), cat(wanted)});
  };
  const auto follow = [&](const char* key, int degree, int wanted) { set(key, degree, degree == 0 ? 0 : wanted); };
  set("tp", now.tp, tp);
  set("pp", now.pp, pp);
  follow("dp", now.dp, data);
  const int shard = std::gcd(now.dp_shard, data);
  follow("dp_shard", now.dp_shard, shard);
  follow("dp_replicate", now.dp_replicate, now.dp_shard > 0 ? data / shard : std::gcd(now.dp_replicate, data));
  if (pp != now.pp && !now.layers_per_stage.list.empty()) change.set.push_back({"parallel.layers_per_stage", "[]"});
  return change;
}

void add_degrees(const RunConfig& config, int world_size, const Room& room, std::vector<Change>& changes) {
  const int tp = config.parallel.tp, pp = config.parallel.pp;
  for (int more = 2 * tp; more * pp <= world_size; more *= 2)
    changes.push_back(other_degrees(config, more, pp, world_size / (more * pp)));
  for (int more = 2 * pp; more * tp <= world_size; more *= 2)
    changes.push_back(other_degrees(config, tp, more, world_size / (more * tp)));
  if (!room.fewer_ranks || room.kind != Room::Kind::kHost) return;
  for (int data = world_size / (tp * pp) / 2; data >= 1; data /= 2) {
    changes.push_back(other_degrees(config, tp, pp, data));
    changes.back().ranks = data * tp * pp;
  }
}

std::vector<Change> changes_of(const RunConfig& config, int world_size, const Room& room) {
  std::vector<Change> changes;
  add_recompute(config, changes);
  add_zero(config, changes);
  add_sizes(config, changes);
  add_offload(config, changes);
  add_degrees(config, world_size, room, changes);
  if (room.kind == Room::Kind::kHost && !room.twin && config.checkpoint.asynchronous)
    changes.push_back({.set = {{"checkpoint.asynchronous", "false"}}});
  if (config.train.precision == config::Precision::kFp32)
    changes.push_back({.set = {{"train.precision", "bf16"}}, .note = " (other rounding)", .same_numbers = false});
  return changes;
}

// A configuration that can be run, and what it takes.
struct Plan {
  RunConfig config;
  Layout layout;
  Program program;
};

std::optional<Plan> plan_of(const RunConfig& config, const Layout& before, int world_size) {
  if (!layout_problems(config, before.model, world_size).empty()) return std::nullopt;
  Plan plan{.config = config, .layout = make_layout(config, before.model, world_size), .program = {}};
  plan.layout.threads = before.threads;
  if (host_limit_problem(plan.layout)) return std::nullopt;
  plan.program = build_program(plan.layout);
  return plan;
}

// What is to be lowered: of each rank by itself its peak, of a host or a GPU all that its ranks take.
class Judge {
 public:
  Judge(const Plan& now, const Shortage& shortage) : now_(now), shortage_(shortage) {
    before_ = measure(now);
    seconds_ = step_seconds(now.layout, now.program, shortage.rank, now.config.train.device);
  }

  WayOut way(const Change& change, const Plan& plan) const {
    const int64_t needed = measure(plan);
    WayOut way{.change = text_of(now_.config, change), .set = change.set, .ranks = change.ranks, .peak = needed};
    way.saved = before_ - needed;
    const int rank = std::min(shortage_.rank, plan.layout.mesh.world_size() - 1);
    way.slower = step_seconds(plan.layout, plan.program, rank, plan.config.train.device) / seconds_ - 1;
    way.same_numbers = change.same_numbers;
    way.fits = fits(need_of(plan.config, plan.layout, plan.program, shortage_.room), shortage_.room);
    return way;
  }

 private:
  bool of_each_rank() const {
    return shortage_.room.kind == Room::Kind::kLimit || shortage_.room.kind == Room::Kind::kUnbounded;
  }
  int64_t measure(const Plan& plan) const {
    const bool same_stages = plan.layout.pipeline.ranks == now_.layout.pipeline.ranks;
    if (of_each_rank() && same_stages) return predict_memory(plan.layout, plan.program, shortage_.rank).peak;
    return need_of(plan.config, plan.layout, plan.program, shortage_.room).total;
  }

  const Plan& now_;
  const Shortage& shortage_;
  int64_t before_ = 0;
  double seconds_ = 0;
};

bool is_better(const WayOut& a, const WayOut& b) {
  const auto key = [](const WayOut& way) {
    return std::tuple(!way.fits, way.fits && !way.same_numbers, way.fits ? way.slower : -static_cast<double>(way.saved));
  };
  return key(a) < key(b);
}

// Later ones win.
Change joined(Change first, const Change& second) {
  for (const config::Override& set : second.set) {
    std::erase_if(first.set, [&](const config::Override& before) { return before.key == set.key; });
    first.set.push_back(set);
  }
  if (second.ranks > 0) first.ranks = second.ranks;
  if (first.note != second.note) first.note += second.note;
  first.same_numbers = first.same_numbers && second.same_numbers;
  return first;
}

struct Tried {
  Change change;
  Plan plan;
  WayOut way;
};

// All that lower what is needed, the best first; beyond what `start` has changed already.
std::vector<Tried> try_changes(const Plan& from, const Change& start, const Judge& judge, const Room& room) {
  std::vector<Tried> tried;
  for (const Change& next : changes_of(from.config, from.layout.mesh.world_size(), room)) {
    const Change change = joined(start, next);
    const int ranks = next.ranks > 0 ? next.ranks : from.layout.mesh.world_size();
    std::optional<Plan> plan = plan_of(changed(from.config, next), from.layout, ranks);
    if (!plan) continue;
    WayOut way = judge.way(change, *plan);
    if (way.saved > 0) tried.push_back({.change = change, .plan = *std::move(plan), .way = std::move(way)});
  }
  std::stable_sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return is_better(a.way, b.way); });
  return tried;
}

// The one that keeps the numbers and saves most, else the one that saves most.
const Tried& best_start(const std::vector<Tried>& tried) {
  const auto same = std::find_if(tried.begin(), tried.end(), [](const Tried& one) { return one.way.same_numbers; });
  return same != tried.end() ? *same : tried.front();
}

// Where none fits alone: what saves most, and on top of it the next.
std::optional<WayOut> together(std::vector<Tried> tried, const Judge& judge, const Room& room) {
  for (int changes = 2; changes <= kMostTogether && !tried.empty(); ++changes) {
    const Tried start = best_start(tried);
    tried = try_changes(start.plan, start.change, judge, room);
    std::erase_if(tried, [&](const Tried& one) { return one.way.saved <= start.way.saved; });
    if (!tried.empty() && tried.front().way.fits) return tried.front().way;
  }
  return std::nullopt;
}

}  // namespace

std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, const Shortage& shortage) {
  const Plan now{.config = config, .layout = layout, .program = build_program(layout)};
  const Judge judge(now, shortage);
  const std::vector<Tried> tried = try_changes(now, {}, judge, shortage.room);
  std::vector<WayOut> ways;
  for (const Tried& one : tried) ways.push_back(one.way);
  int64_t actions = 0;
  for (int rank = 0; rank < now.program.world_size(); ++rank) actions += std::ssize(now.program.list(rank));
  if (!tried.empty() && !ways.front().fits && actions < kLargeProgram)
    if (auto several = together(tried, judge, shortage.room)) ways.insert(ways.begin(), *std::move(several));
  ways.resize(std::min(shortage.most, ways.size()));
  return ways;
}

}  // namespace lockstep::plan
