#include "lockstep/config/check.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::config {
namespace {

// Every rank of the axis has the same number of heads, and of key/value heads or of ranks that share one.
void tensor_parallel_problems(const ModelSection& model, int tp, const Expect& expect) {
  if (!model.heads) return;
  const int64_t heads = *model.heads, kv_heads = model.kv_heads.value_or(heads);
  expect(heads % tp == 0, "parallel.tp", cat("model.heads(", heads, ") % tp(", tp, ") = ", heads % tp),
         cat("use tp ", divisors_near(heads, tp)));
  if (heads % tp != 0) return;
  expect(kv_heads % tp == 0 || tp % kv_heads == 0, "parallel.tp",
         cat("neither of model.kv_heads(", kv_heads, ") and tp(", tp, ") divides the other"),
         cat("use tp ", divisors_near(kv_heads, tp)));
}

// The data-parallel ranks as groups that share out states.
void sharding_problems(const RunConfig& config, int dp, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int zero = zero_stage(config), shard = parallel.dp_shard, replicate = parallel.dp_replicate;
  expect(!parallel.fsdp || parallel.zero == 0 || parallel.zero == 3, "parallel.zero",
         cat("fsdp is zero 3, but zero = ", parallel.zero), "leave one of the two out");
  expect(zero > 0 || shard <= 1, "parallel.dp_shard",
         cat("dp_shard(", shard, ") groups ranks that share out states, but zero = 0 shares out none"),
         "use zero 1, 2 or 3, or dp_replicate alone");
  expect(zero == 0 || parallel.data_parallel == DataParallel::kRing, "parallel.data_parallel",
         cat("a parameter server holds all states itself, but zero = ", zero, " shares them out"),
         "use data_parallel ring, or zero 0");
  expect(parallel.reduce_precision == Precision::kFp32 || zero > 0, "parallel.reduce_precision",
         "reduce_precision bf16 with zero 0", "use zero 1, 2 or 3, or leave it out");
  const bool alone = zero > 0 && (shard == 1 || dp == 1 || (shard == 0 && replicate == dp));
  expect(parallel.reduce_precision == Precision::kFp32 || !alone, "parallel.reduce_precision",
         "reduce_precision bf16, but dp_shard = 1: nothing is sent to the owner of a shard",
         "leave it out: sums over dp_replicate stay fp32");
  if (shard > 0 && replicate > 0) {
    expect(shard * replicate == dp, "parallel.dp_shard",
           cat("[mesh] dp_replicate(", replicate, ") x dp_shard(", shard, ") = ", shard * replicate, ", but dp = ", dp),
           dp % replicate == 0 ? cat("dp_shard=", dp / replicate, " would fit")
                               : cat("dp_replicate=", divisors_near(dp, replicate), " would fit"));
  } else if (const int one = std::max(shard, replicate); one > 0) {
    expect(dp % one == 0, shard > 0 ? "parallel.dp_shard" : "parallel.dp_replicate",
           cat("dp(", dp, ") % ", shard > 0 ? "dp_shard(" : "dp_replicate(", one, ") = ", dp % one),
           cat("use ", divisors_near(dp, one)));
  }
}

// What may live on the host, and what must come with it.
void offload_problems(const RunConfig& config, int dp, const Expect& expect) {
  const MemorySection& memory = config.memory;
  const auto has = [](const Words& words, const char* word) {
    return std::find(words.list.begin(), words.list.end(), word) != words.list.end();
  };
  const bool optimizer = has(memory.offload, "optimizer"), parameters = has(memory.offload, "parameters");
  const bool activations = has(memory.offload, "activations");
  const int zero = zero_stage(config);
  expect(!parameters || optimizer, "memory.offload", "parameters on the host without the optimizer state",
         "add \"optimizer\": the update runs where the parameters live");
  expect(!parameters || zero == 0 || zero == 3 || dp == 1, "memory.offload",
         cat("parameters on the host, but with zero ", zero, " every rank needs all of them after the update"),
         "use zero 3");
  expect(memory.offload.list.empty() || config.parallel.data_parallel == DataParallel::kRing, "memory.offload",
         "a parameter server that offloads", "use data_parallel ring");
  expect(!activations || has(memory.recompute, "full"), "memory.offload",
         "offload moves the inputs of layers that full recomputation keeps, but no block has recompute full",
         "use memory.recompute full, or leave \"activations\" out");
  if (config.model.layers && memory.recompute.list.size() != 1)
    expect(static_cast<int64_t>(memory.recompute.list.size()) == *config.model.layers, "memory.recompute",
           cat("recompute lists ", memory.recompute.list.size(), " blocks, but model.layers = ", *config.model.layers),
           "name one for every block, or one word for all");
  expect(memory.disk_path.empty() || memory.host_limit.count > 0, "memory.disk_path",
         "disk_path takes what is beyond host_limit, and there is none", "set memory.host_limit");
  expect(memory.host_limit.count == 0 || !memory.offload.list.empty(), "memory.host_limit",
         "host_limit bounds what is offloaded, and nothing is", "set memory.offload");
}

}  // namespace

int zero_stage(const RunConfig& config) { return config.parallel.fsdp ? 3 : config.parallel.zero; }

int data_parallel_size(const RunConfig& config, int world_size) {
  const ParallelSection& parallel = config.parallel;
  if (parallel.dp > 0) return parallel.dp;
  if (parallel.dp_replicate > 0 && parallel.dp_shard > 0) return parallel.dp_replicate * parallel.dp_shard;
  return static_cast<int>(std::max(int64_t{1}, world_size / (int64_t{parallel.tp} * parallel.pp)));
}

DataDegrees data_degrees(const RunConfig& config, int world_size) {
  const ParallelSection& parallel = config.parallel;
  const int dp = data_parallel_size(config, world_size);
  if (zero_stage(config) == 0) return {.replicate = dp, .shard = 1};
  if (parallel.dp_shard > 0) return {.replicate = std::max(1, dp / parallel.dp_shard), .shard = parallel.dp_shard};
  const int replicate = std::max(1, parallel.dp_replicate);
  return {.replicate = replicate, .shard = std::max(1, dp / replicate)};
}

int ranks_wanted(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  const int dp = parallel.dp > 0 ? parallel.dp : std::max(1, parallel.dp_replicate) * std::max(1, parallel.dp_shard);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(kMost, std::min(kMost, int64_t{dp} * parallel.tp) * parallel.pp));
}

int64_t microbatches(const RunConfig& config, int world_size) {
  return config.train.global_batch / (data_parallel_size(config, world_size) * config.train.micro_batch);
}

std::vector<LayoutProblem> layout_problems(const RunConfig& config, int world_size) {
  std::vector<LayoutProblem> problems;
  const Expect expect = [&](bool holds, const char* key, std::string what, std::string way_out) {
    if (!holds) problems.push_back({.key = key, .what = std::move(what), .way_out = std::move(way_out)});
  };
  const TrainSection& train = config.train;
  const OptimizerSection& optimizer = config.optimizer;
  const int dp = data_parallel_size(config, world_size);

  mesh_problems(config, world_size, expect);
  tensor_parallel_problems(config.model, config.parallel.tp, expect);
  pipeline_problems(config, expect);
  sharding_problems(config, dp, expect);
  offload_problems(config, dp, expect);
  trace_problems(config, expect);

  const int64_t per_pass = dp * train.micro_batch;
  if (train.global_batch % per_pass != 0) {
    // What fits must suit the schedule too: interleaved takes its microbatches in groups of pp.
    const int64_t group = config.parallel.schedule == "interleaved" ? config.parallel.pp : 1;
    std::string way_out = cat("use global_batch ", multiples_near(per_pass * group, train.global_batch));
    if (train.global_batch % dp == 0) {
      way_out += cat(", or micro_batch ", divisors_near(train.global_batch / dp, train.micro_batch));
    }
    expect(false, "train.global_batch",
           cat("global_batch(", train.global_batch, ") is not a multiple of dp(", dp, ") * micro_batch(",
               train.micro_batch, ") = ", per_pass),
           std::move(way_out));
  }
  if (config.model.max_seq_len) {
    expect(train.seq_len <= *config.model.max_seq_len, "train.seq_len",
           cat("seq_len(", train.seq_len, ") > model.max_seq_len(", *config.model.max_seq_len, ")"),
           cat("use seq_len ", *config.model.max_seq_len, " or less"));
  }
  expect(optimizer.warmup_steps <= train.steps, "optimizer.warmup_steps",
         cat("warmup_steps(", optimizer.warmup_steps, ") > train.steps(", train.steps, ")"),
         cat("use warmup_steps ", train.steps, " or less"));
  expect(optimizer.min_lr <= optimizer.lr, "optimizer.min_lr",
         cat("min_lr(", number_text(optimizer.min_lr), ") > lr(", number_text(optimizer.lr), ")"),
         cat("use min_lr ", number_text(optimizer.lr), " or less"));
  return problems;
}

void refuse_layout(const LoadedConfig& loaded, const std::vector<LayoutProblem>& problems) {
  if (problems.empty()) return;
  std::vector<std::string> places;
  size_t place_width = 0;
  size_t what_width = 0;
  for (const LayoutProblem& problem : problems) {
    const auto origin = loaded.origin.find(problem.key);
    const bool unset = origin != loaded.origin.end() && origin->second.starts_with("default");
    places.push_back(origin == loaded.origin.end() ? problem.key : unset ? problem.key + " (not set)" : origin->second);
    place_width = std::max(place_width, places.back().size());
    what_width = std::max(what_width, problem.what.size());
  }
  std::string text = cat("this layout does not fit the launch (", problems.size(),
                         problems.size() == 1 ? " problem" : " problems", ", nothing was started)");
  for (size_t i = 0; i < problems.size(); ++i) {
    text += cat("\n  ", pad_right(places[i], place_width), "  ", pad_right(problems[i].what, what_width), "  ",
                problems[i].way_out);
  }
  throw ConfigError({.code = "LS1101", .what = text});
}

void check_layout(const LoadedConfig& loaded, int world_size) {
  refuse_layout(loaded, layout_problems(loaded.config, world_size));
}

void check_layout(const RunConfig& config, int world_size) {
  check_layout(LoadedConfig{.config = config, .origin = {}}, world_size);
}

}  // namespace lockstep::config
