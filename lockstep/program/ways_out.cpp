#include "lockstep/program/ways_out.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/step_cost.h"

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

void add_tensor(const RunConfig& config, int world_size, std::vector<Change>& changes) {
  for (int tp = 2 * config.parallel.tp; tp * config.parallel.pp <= world_size; tp *= 2) {
    const int dp = world_size / (tp * config.parallel.pp);
    const auto make = [tp, dp](RunConfig& c) {
      c.parallel.tp = tp;
      c.parallel.dp = dp;
      c.parallel.dp_shard = c.parallel.dp_replicate = 0;
    };
    changes.push_back({cat("parallel.tp = ", tp, config.parallel.dp > 0 ? cat(" and dp = ", dp) : ""), make});
  }
}

std::vector<Change> changes_of(const RunConfig& config, int world_size) {
  std::vector<Change> changes;
  add_recompute(config, changes);
  add_zero(config, changes);
  add_micro_batch(config, changes);
  add_offload(config, changes);
  add_tensor(config, world_size, changes);
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

int64_t limit_of(const Layout& layout) { return layout.device_limit > 0 ? layout.device_limit : INT64_MAX; }

}  // namespace

std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, int rank, size_t most) {
  const int world_size = layout.mesh.world_size();
  const Program program = build_program(layout);
  const int64_t peak = predict_memory(layout, program, rank).peak;
  const double now = seconds(step_cost(layout, program, rank), config.train.device);
  std::vector<WayOut> ways;
  for (const Change& change : changes_of(config, world_size)) {
    RunConfig changed = config;
    change.make(changed);
    if (!layout_problems(changed, layout.model, world_size).empty()) continue;
    Layout other = make_layout(changed, layout.model, world_size);
    other.threads = layout.threads;
    if (!host_has_room(other)) continue;
    const Program plan = build_program(other);
    WayOut way{.change = change.text, .peak = predict_memory(other, plan, rank).peak};
    way.saved = peak - way.peak;
    way.slower = seconds(step_cost(other, plan, rank), config.train.device) / now - 1;
    way.same_numbers = change.same_numbers;
    way.fits = way.peak <= limit_of(layout);
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
