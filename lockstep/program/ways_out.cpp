#include "lockstep/program/ways_out.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/step_cost.h"
#include "lockstep/program/traffic.h"

namespace lockstep::program {
namespace {

using config::RunConfig;

struct Change {
  std::string text;
  std::function<void(RunConfig&)> make;
  bool same_numbers = true;
};

bool has(const std::vector<std::string>& words, const char* word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string quoted(const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const std::string& word : words) all.push_back(cat('"', word, '"'));
  return cat("[", join(all, ", "), "]");
}

void add_recompute(const RunConfig& config, std::vector<Change>& changes) {
  for (const char* word : {"selective", "full"}) {
    const std::vector<std::string>& now = config.memory.recompute.list;
    if (std::all_of(now.begin(), now.end(), [&](const std::string& block) { return block == word; })) continue;
    changes.push_back({cat("memory.recompute = \"", word, "\""), [word](RunConfig& c) { c.memory.recompute.list = {word}; }});
  }
}

void add_zero(const RunConfig& config, std::vector<Change>& changes) {
  for (int stage = config::zero_stage(config) + 1; stage <= 3; ++stage)
    changes.push_back({cat("parallel.zero = ", stage), [stage](RunConfig& c) {
                         c.parallel.zero = stage;
                         c.parallel.fsdp = false;
                       }});
}

void add_micro_batch(const RunConfig& config, std::vector<Change>& changes) {
  for (int64_t size = config.train.micro_batch / 2; size >= 1; size /= 2)
    changes.push_back({cat("train.micro_batch = ", size), [size](RunConfig& c) { c.train.micro_batch = size; }});
}

void add_offload(const RunConfig& config, std::vector<Change>& changes) {
  std::vector<std::string> words = config.memory.offload.list;
  for (const char* word : {"optimizer", "parameters"}) {
    if (has(words, word)) continue;
    words.emplace_back(word);
    changes.push_back({cat("memory.offload = ", quoted(words)), [words](RunConfig& c) { c.memory.offload.list = words; }});
  }
  if (has(config.memory.offload.list, "activations")) return;
  words = config.memory.offload.list;
  words.emplace_back("activations");
  changes.push_back({cat("memory.offload = ", quoted(words)), [words](RunConfig& c) { c.memory.offload.list = words; }});
}

// Other degrees for the same ranks: the data axes give what tp and pp take, and with them the keys that were set.
Change other_degrees(const RunConfig& config, const std::string& text, int tp, int pp, int data) {
  RunConfig changed = config;
  config::ParallelSection& to = changed.parallel;
  Change change{.text = text, .make = nullptr};
  const auto set = [&](const char* key, int& degree, int wanted) {
    if (degree != 0 && degree != wanted) change.text += cat(" and ", key, " = ", wanted);
    if (degree != 0) degree = wanted;
  };
  set("dp", to.dp, data);
  set("dp_shard", to.dp_shard, std::gcd(to.dp_shard, data));
  set("dp_replicate", to.dp_replicate, to.dp_shard > 0 ? data / to.dp_shard : std::gcd(to.dp_replicate, data));
  to.tp = tp;
  to.pp = pp;
  if (pp != config.parallel.pp && !to.layers_per_stage.list.empty()) {
    change.text += " without layers_per_stage";
    to.layers_per_stage.list.clear();
  }
  change.make = [to](RunConfig& c) { c.parallel = to; };
  return change;
}

void add_degrees(const RunConfig& config, int world_size, std::vector<Change>& changes) {
  const int tp = config.parallel.tp, pp = config.parallel.pp;
  for (int more = 2 * tp; more * pp <= world_size; more *= 2)
    changes.push_back(other_degrees(config, cat("parallel.tp = ", more), more, pp, world_size / (more * pp)));
  for (int more = 2 * pp; more * tp <= world_size; more *= 2)
    changes.push_back(other_degrees(config, cat("parallel.pp = ", more), tp, more, world_size / (more * tp)));
}

std::vector<Change> changes_of(const RunConfig& config, int world_size) {
  std::vector<Change> changes;
  add_recompute(config, changes);
  add_zero(config, changes);
  add_micro_batch(config, changes);
  add_offload(config, changes);
  add_degrees(config, world_size, changes);
  if (config.train.precision == config::Precision::kFp32)
    changes.push_back({"train.precision = \"bf16\" (other rounding)",
                       [](RunConfig& c) { c.train.precision = config::Precision::kBf16; }, false});
  return changes;
}

bool host_has_room(const Layout& layout) {
  try {
    for (int rank = 0; rank < layout.mesh.world_size(); rank += layout.mesh.world_size() / layout.pipeline.ranks)
      host_plan(layout, rank);
  } catch (const ConfigError&) {  // LS4010
    return false;
  }
  return true;
}

// Of the stage that needs most.
int64_t most_of_stages(const Layout& layout, const Program& program) {
  int64_t most = 0;
  for (const int rank : stage_ranks(layout)) most = std::max(most, predict_memory(layout, program, rank).peak);
  return most;
}

int64_t limit_of(const Layout& layout) { return layout.device_limit > 0 ? layout.device_limit : INT64_MAX; }

}  // namespace

std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, int rank, size_t most) {
  const int world_size = layout.mesh.world_size();
  const Program program = build_program(layout);
  const int64_t peak = predict_memory(layout, program, rank).peak;
  const double now = step_seconds(layout, program, rank, config.train.device);
  std::vector<WayOut> ways;
  for (const Change& change : changes_of(config, world_size)) {
    RunConfig changed = config;
    change.make(changed);
    if (!layout_problems(changed, layout.model, world_size).empty()) continue;
    Layout other = make_layout(changed, layout.model, world_size);
    other.threads = layout.threads;
    if (!host_has_room(other)) continue;
    const Program plan = build_program(other);
    const bool pipeline = other.pipeline.ranks > 1, same_stages = other.pipeline.ranks == layout.pipeline.ranks;
    const int64_t most = pipeline ? most_of_stages(other, plan) : 0;
    WayOut way{.change = change.text, .peak = same_stages ? predict_memory(other, plan, rank).peak : most};
    way.saved = peak - way.peak;
    way.slower = step_seconds(other, plan, rank, config.train.device) / now - 1;
    way.same_numbers = change.same_numbers;
    way.fits = std::max(most, way.peak) <= limit_of(layout);
    if (way.saved > 0) ways.push_back(std::move(way));
  }
  std::stable_sort(ways.begin(), ways.end(), [](const WayOut& a, const WayOut& b) {
    const auto key = [](const WayOut& way) {
      return std::tuple(!way.fits, way.fits && !way.same_numbers, way.fits ? way.slower : -static_cast<double>(way.saved));
    };
    return key(a) < key(b);
  });
  ways.resize(std::min(most, ways.size()));
  return ways;
}

}  // namespace lockstep::program
