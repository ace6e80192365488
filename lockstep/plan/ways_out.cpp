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
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/placement.h"

namespace lockstep::plan {

using program::Action;
using program::JudgedSteps;
using program::Layout;
using program::Program;
using program::RankMemory;
using program::layout_problems;
using program::make_layout;

namespace {

using config::RunConfig;

constexpr int kMostTogether = 3;               // changes
constexpr double kLargeProgram = 100'000;  // actions of all ranks: beyond them changes are not tried together

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

// A configuration that can be run.
struct Plan {
  RunConfig config;
  Layout layout;
};

std::optional<Plan> plan_of(const RunConfig& config, const Layout& before, int world_size) {
  if (!layout_problems(config, before.model, world_size).empty()) return std::nullopt;
  Plan plan{.config = config, .layout = make_layout(config, before.model, world_size)};
  plan.layout.threads = before.threads;
  if (host_limit_problem(plan.layout)) return std::nullopt;
  return plan;
}

// What a plan takes of what is to be lowered: of each rank by itself its peak, of a host or a GPU all that its ranks take.
struct Taken {
  int64_t bytes = 0;
  bool fits = false;
};

class Judge {
 public:
  Judge(const Plan& now, const JudgedSteps& steps, const Shortage& shortage) : now_(now), shortage_(shortage) {
    RankMemory memory(now.layout, steps);
    before_ = taken(now, memory).bytes;
    seconds_ = step_seconds(now.layout, steps, shortage.rank, now.config.train.device);
  }

  Taken taken(const Plan& plan, RankMemory& memory) const {
    const Need need = need_of(plan.config, plan.layout, memory, shortage_.room);
    const bool same_stages = plan.layout.pipeline.ranks == now_.layout.pipeline.ranks;
    return {.bytes = of_each_rank() && same_stages ? memory.of(shortage_.rank).peak : need.total,
            .fits = fits(need, shortage_.room)};
  }
  // What the ranks hold between two steps, less than which no step takes.
  Taken at_least(const Plan& plan) const {
    std::vector<std::vector<Action>> lists(static_cast<size_t>(plan.layout.pipeline.ranks));
    const Program idle = program::by_pipeline_rank(plan.layout, std::move(lists));
    RankMemory memory(plan.layout, idle);
    return taken(plan, memory);
  }
  bool saves(const Taken& what) const { return what.bytes < before_; }

  // Without its time.
  WayOut way(const Change& change, const Taken& what) const {
    return {.change = text_of(now_.config, change), .set = change.set, .ranks = change.ranks, .peak = what.bytes,
            .saved = before_ - what.bytes, .same_numbers = change.same_numbers, .fits = what.fits};
  }
  double slower(const Plan& plan, const JudgedSteps& steps) const {
    const int rank = std::min(shortage_.rank, plan.layout.mesh.world_size() - 1);
    return step_seconds(plan.layout, steps, rank, plan.config.train.device) / seconds_ - 1;
  }

 private:
  bool of_each_rank() const {
    return shortage_.room.kind == Room::Kind::kLimit || shortage_.room.kind == Room::Kind::kUnbounded;
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

// `least` is known of each change; the rest of those that may be named.
struct Tried {
  Change change;
  Plan plan;
  Taken least{};
  size_t order = 0;  // of the change
  WayOut way{};
};

// Beyond what `start` has changed already, by what they take at least: those that may fit first.
std::vector<Tried> candidates(const Plan& from, const Change& start, const Judge& judge, const Room& room) {
  std::vector<Tried> found;
  for (const Change& next : changes_of(from.config, from.layout.mesh.world_size(), room)) {
    const int ranks = next.ranks > 0 ? next.ranks : from.layout.mesh.world_size();
    std::optional<Plan> plan = plan_of(changed(from.config, next), from.layout, ranks);
    if (!plan) continue;
    const Taken least = judge.at_least(*plan);
    if (judge.saves(least))
      found.push_back({.change = joined(start, next), .plan = *std::move(plan), .least = least, .order = found.size()});
  }
  const auto key = [](const Tried& one) { return std::tuple(!one.least.fits, one.least.bytes); };
  std::stable_sort(found.begin(), found.end(), [&](const Tried& a, const Tried& b) { return key(a) < key(b); });
  return found;
}

// It is neither among the first `most` nor, of those that keep the numbers, the one that saves most: it does not fit, and so many
// others take less than it takes at least.
bool is_behind(const Tried& one, const std::vector<Tried>& tried, size_t most) {
  if (one.least.fits) return false;
  const auto ahead = [&](const Tried& other) { return other.way.fits || other.way.peak < one.least.bytes; };
  const auto and_same = [&](const Tried& other) { return ahead(other) && other.change.same_numbers; };
  return static_cast<size_t>(std::ranges::count_if(tried, ahead)) >= most &&
         (!one.change.same_numbers || std::ranges::any_of(tried, and_same));
}

// Those that lower what is needed, the best first: at least the first `most` of them and the best that keeps the numbers. Only
// what may be among these is planned.
std::vector<Tried> try_changes(const Plan& from, const Change& start, const Judge& judge, const Room& room, size_t most) {
  std::vector<Tried> tried;
  for (Tried& one : candidates(from, start, judge, room)) {
    if (is_behind(one, tried, most)) continue;
    const JudgedSteps steps = judged_steps(one.plan.layout);
    RankMemory memory(one.plan.layout, steps);
    const Taken taken = judge.taken(one.plan, memory);
    if (!judge.saves(taken)) continue;
    one.way = judge.way(one.change, taken);
    if (taken.fits) one.way.slower = judge.slower(one.plan, steps);
    tried.push_back(std::move(one));
  }
  std::ranges::sort(tried, {}, &Tried::order);
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
    tried = try_changes(start.plan, start.change, judge, room, 1);
    std::erase_if(tried, [&](const Tried& one) { return one.way.saved <= start.way.saved; });
    if (!tried.empty() && tried.front().way.fits) return tried.front().way;
  }
  return std::nullopt;
}

// On all ranks.
double actions_in(const program::MadeStep& step) {
  int64_t actions = 0;
  for (const auto& [rank, ranks] : program::RankClasses(step.program, step.layout).among(0, step.program.world_size()))
    actions += ranks * std::ssize(step.program.list(rank));
  return static_cast<double>(actions);
}

}  // namespace

std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, const Shortage& shortage) {
  const Plan now{.config = config, .layout = layout};
  const JudgedSteps steps = judged_steps(layout);
  const Judge judge(now, steps, shortage);
  std::vector<Tried> tried = try_changes(now, {}, judge, shortage.room, shortage.most);
  std::vector<WayOut> ways;
  for (size_t i = 0; i < std::min(shortage.most, tried.size()); ++i) {
    ways.push_back(tried[i].way);
    if (!ways.back().fits) ways.back().slower = judge.slower(tried[i].plan, judged_steps(tried[i].plan.layout));
  }
  if (!ways.empty() && !ways.front().fits && steps.sum_of_step(actions_in) < kLargeProgram)
    if (auto several = together(std::move(tried), judge, shortage.room)) ways.insert(ways.begin(), *std::move(several));
  ways.resize(std::min(shortage.most, ways.size()));
  return ways;
}

}  // namespace lockstep::plan
