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
#include "lockstep/plan/expert_limits.h"
#include "lockstep/plan/room.h"
#include "lockstep/plan/usual_machine.h"
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
constexpr const char* kLimit = "moe.imbalance_limit";
constexpr double kUnboundedLimit = 2;  // of it, where nobody says how much room there is

const config::Field& field_of(const std::string& key) {
  const config::Field* field = config::find_field(key);
  LOCKSTEP_CHECK(field != nullptr, "no field ", key);
  return *field;
}

RunConfig changed(RunConfig config, const WayOut& change) {
  for (const config::Override& set : change.set) {
    const config::Field& field = field_of(set.key);
    const auto complaint = field.assign(config, config::parse_value(field, set.value));
    LOCKSTEP_CHECK(!complaint, set.key, " = ", set.value);
  }
  return config;
}

// As it stands in a file: "parallel.pp = 4 and parallel.dp = 1".
std::string text_of(const RunConfig& config, const WayOut& change) {
  std::vector<std::string> parts;
  if (change.ranks > 0) parts.push_back(cat("-n ", change.ranks));
  const RunConfig to = changed(config, change);
  for (const config::Override& set : change.set) parts.push_back(cat(set.key, " = ", field_of(set.key).print(to)));
  return join(parts, " and ") + change.note;
}

// To a GPU's host; on the CPU what is offloaded is on the same host.
void add_offload(const RunConfig& config, std::vector<WayOut>& changes) {
  using config::Offloaded;
  const config::List<Offloaded>& now = config.memory.offload;
  if (config.train.device == config::Device::kCpu) {
    if (now.list.empty()) return;
    WayOut none{.set = {{"memory.offload", "[]"}}};
    if (config.memory.host_limit.count > 0) none.set.push_back({"memory.host_limit", "0"});
    if (!config.memory.disk_path.empty()) none.set.push_back({"memory.disk_path", ""});
    return changes.push_back(std::move(none));
  }
  config::List<Offloaded> more = now;
  const auto add = [&](Offloaded next) {
    if (more.has(next)) return;
    more.list.push_back(next);
    std::vector<std::string> words;
    for (const Offloaded one : more.list) words.push_back(config::name_of(one));
    changes.push_back({.set = {{"memory.offload", cat("[", join(words, ","), "]")}}});
  };
  add(Offloaded::kOptimizer);
  add(Offloaded::kParameters);
  more = now;
  add(Offloaded::kActivations);
}

// Other degrees: the data axes give what tp and pp take, and with them the keys that were set.
WayOut other_degrees(const RunConfig& config, int tp, int pp, int data) {
  const config::ParallelSection& now = config.parallel;
  WayOut change;
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

void add_degrees(const RunConfig& config, int world_size, const Room& room, std::vector<WayOut>& changes) {
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

std::vector<WayOut> changes_of(const RunConfig& config, int world_size, const Room& room) {
  std::vector<WayOut> changes;
  for (const config::Recompute more : {config::Recompute::kSelective, config::Recompute::kFull})
    if (!std::ranges::all_of(config.memory.recompute.list, [&](config::Recompute block) { return block == more; }))
      changes.push_back({.set = {{"memory.recompute", config::name_of(more)}}});
  for (int stage = config::zero_stage(config) + 1; stage <= 3; ++stage) {
    changes.push_back({.set = {{"parallel.zero", cat(stage)}}});
    if (config.parallel.fsdp) changes.back().set.push_back({"parallel.fsdp", "false"});
  }
  for (int64_t size = config.train.micro_batch / 2; size >= 1; size /= 2)
    changes.push_back({.set = {{"train.micro_batch", cat(size)}}});
  // At first the least one, which saves most.
  if (config.parallel.ep * config.parallel.etp > 1 && !config.moe.imbalance_limit) changes.push_back({.set = {{kLimit, "1"}}, .limits_experts = true});
  constexpr int64_t kShortest = 64;
  for (int64_t size = config.train.seq_len / 2; size >= kShortest; size /= 2)
    changes.push_back({.set = {{"train.seq_len", cat(size)}}, .note = " (shorter sequences)"});
  add_offload(config, changes);
  add_degrees(config, world_size, room, changes);
  if (room.kind == Room::Kind::kHost && !room.twin && config.checkpoint.asynchronous)
    changes.push_back({.set = {{"checkpoint.asynchronous", "false"}}});
  if (config.train.precision == config::Precision::kFp32)
    changes.push_back({.set = {{"train.precision", "bf16"}}, .note = " (other rounding)"});
  return changes;
}

// A configuration that can be run.
struct Plan {
  RunConfig config{};
  Layout layout{};
  WayOut way{};      // that has led to it; until it is tried with what it takes at least
  size_t order = 0;  // of its last change among those of one start
};

// Later ones win.
WayOut joined(WayOut first, const WayOut& second) {
  for (const config::Override& set : second.set) {
    std::erase_if(first.set, [&](const config::Override& before) { return before.key == set.key; });
    first.set.push_back(set);
  }
  if (second.ranks > 0) first.ranks = second.ranks;
  if (first.note != second.note) first.note += second.note;
  first.limits_experts |= second.limits_experts;
  return first;
}


// It is neither among the first `most` nor, of those that keep the numbers, the one that saves most: it does not fit, and so many
// others take less than it takes at least.
bool is_behind(const WayOut& least, const std::vector<Plan>& tried, size_t most) {
  if (least.fits) return false;
  const auto ahead = [&](const Plan& other) { return other.way.fits || other.way.peak < least.peak; };
  const auto and_same = [&](const Plan& other) { return ahead(other) && other.way.same_numbers(); };
  return static_cast<size_t>(std::ranges::count_if(tried, ahead)) >= most &&
         (!least.same_numbers() || std::ranges::any_of(tried, and_same));
}

// On all ranks.
double actions_in(const program::MadeStep& step) {
  int64_t actions = 0;
  for (const auto& [rank, ranks] : program::RankClasses(step.program, step.layout).among(0, step.program.world_size()))
    actions += ranks * std::ssize(step.program.list(rank));
  return static_cast<double>(actions);
}

class Search {
 public:
  Search(const Plan& now, const Shortage& shortage) : now_(now), shortage_(shortage), steps_(judged_steps(now.layout)) {
    RankMemory memory(now_.layout, steps_);
    lowers(now_, memory);
    seconds_ = seconds(now_);
  }

  std::vector<WayOut> best() const {
    std::vector<Plan> tried = try_changes(now_, shortage_.most);
    std::vector<WayOut> ways;
    for (Plan& one : tried) {
      if (ways.size() == shortage_.most) break;
      raise_limit(one);
      ways.push_back(one.way);
      if (!one.way.fits) ways.back().slower = slower(one);
    }
    if (!ways.empty() && !ways.front().fits && steps_.sum_of_step(actions_in) < kLargeProgram)
      if (auto several = together(std::move(tried))) ways.insert(ways.begin(), *std::move(several));
    ways.resize(std::min(shortage_.most, ways.size()));
    return ways;
  }

 private:
  static double seconds(const Plan& plan) { return usual_seconds(plan.layout, plan.config.train.device); }
  double slower(const Plan& plan) const { return seconds(plan) / seconds_ - 1; }

  // Notes what the plan takes of what is to be lowered: of each rank by itself its peak, of a host or a GPU all that its ranks take.
  bool lowers(Plan& plan, RankMemory& memory) const {
    const Need need = need_of(plan.config, plan.layout, memory, shortage_.room);
    const bool same_stages = plan.layout.pipeline.ranks == now_.layout.pipeline.ranks;
    plan.way.peak = shortage_.room.of_each_rank() && same_stages ? memory.of(shortage_.rank).peak : need.total;
    plan.way.saved = now_.way.peak - plan.way.peak;
    plan.way.fits = fits(need, shortage_.room);
    return plan.way.saved > 0;
  }

  // Beyond what `start` has changed already, by what they take at least, which is what ranks hold between two steps: those that may
  // fit first.
  std::vector<Plan> candidates(const Plan& start) const {
    const int world_size = start.layout.mesh.world_size();
    std::vector<Plan> found;
    for (const WayOut& next : changes_of(start.config, world_size, shortage_.room)) {
      const int ranks = next.ranks > 0 ? next.ranks : world_size;
      Plan plan{.config = changed(start.config, next), .way = joined(start.way, next), .order = found.size()};
      if (!layout_problems(plan.config, start.layout.model, ranks).empty()) continue;
      plan.layout = make_layout(plan.config, start.layout.model, ranks);
      plan.layout.threads = start.layout.threads;
      if (host_limit_problem(plan.layout)) continue;
      std::vector<std::vector<Action>> lists(static_cast<size_t>(plan.layout.pipeline.ranks));
      const Program idle = program::by_pipeline_rank(plan.layout, std::move(lists));
      RankMemory memory(plan.layout, idle);
      if (lowers(plan, memory)) found.push_back(std::move(plan));
    }
    std::ranges::stable_sort(found, {}, [](const Plan& one) { return std::tuple(!one.way.fits, one.way.peak); });
    return found;
  }

  // Those that lower what is needed, the best first: at least the first `most` of them and the best that keeps the numbers. Only
  // what may be among these is planned.
  std::vector<Plan> try_changes(const Plan& start, size_t most) const {
    std::vector<Plan> tried;
    for (Plan& one : candidates(start)) {
      if (is_behind(one.way, tried, most)) continue;
      const JudgedSteps steps = judged_steps(one.layout);
      RankMemory memory(one.layout, steps);
      if (!lowers(one, memory)) continue;
      one.way.change = text_of(now_.config, one.way);
      if (one.way.fits) one.way.slower = slower(one);
      tried.push_back(std::move(one));
    }
    std::ranges::sort(tried, {}, [](const Plan& one) {
      const WayOut& way = one.way;
      return std::tuple(!way.fits, way.fits && !way.same_numbers(), way.fits ? way.slower : -static_cast<double>(way.saved), one.order);
    });
    return tried;
  }

  // The plan with another limit of experts; false, and as it was, where that does not fit.
  bool fits_with(double limit, Plan& plan) const {
    if (shortage_.room.kind == Room::Kind::kUnbounded && limit > kUnboundedLimit) return false;
    const WayOut change{.set = {{kLimit, number_text(limit)}}};
    Plan other{.config = changed(plan.config, change), .way = joined(plan.way, change), .order = plan.order};
    other.layout = make_layout(other.config, plan.layout.model, plan.layout.mesh.world_size());
    other.layout.threads = plan.layout.threads;
    const JudgedSteps steps = judged_steps(other.layout);
    RankMemory memory(other.layout, steps);
    if (!lowers(other, memory) || !other.way.fits) return false;
    other.way.change = text_of(now_.config, other.way);
    other.way.slower = slower(other);
    plan = std::move(other);
    return true;
  }

  // Of a plan that fits with the least limit of experts the one with the largest round limit that does: the larger, the fewer steps
  // have rounds.
  void raise_limit(Plan& plan) const {
    if (!plan.way.fits || !plan.way.limits_experts) return;
    const std::vector<double> limits = round_limits(plan.layout);
    size_t fitting = 0, beyond = limits.size();
    while (beyond - fitting > 1) {
      const size_t middle = (fitting + beyond) / 2;
      (fits_with(limits[middle], plan) ? fitting : beyond) = middle;
    }
  }

  // Where none fits alone: of those that keep the numbers, or else of all, what saves most; and on top of it the next.
  std::optional<WayOut> together(std::vector<Plan> tried) const {
    for (int changes = 2; changes <= kMostTogether && !tried.empty(); ++changes) {
      const auto same = std::ranges::find_if(tried, [](const Plan& one) { return one.way.same_numbers(); });
      const Plan start = same != tried.end() ? *same : tried.front();
      tried = try_changes(start, 1);
      std::erase_if(tried, [&](const Plan& one) { return one.way.saved <= start.way.saved; });
      if (!tried.empty() && tried.front().way.fits) {
        raise_limit(tried.front());
        return tried.front().way;
      }
    }
    return std::nullopt;
  }

  Plan now_;
  const Shortage& shortage_;
  const JudgedSteps steps_;
  double seconds_ = 0;
};

}  // namespace

std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, const Shortage& shortage) {
  return Search({.config = config, .layout = layout}, shortage).best();
}

}  // namespace lockstep::plan
