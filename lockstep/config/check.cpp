#include "lockstep/config/check.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

// Every rank of the axis has the same number of heads, and of key/value heads or of ranks that share one.
void tensor_parallel_problems(const ModelSection& model, int tp, const Expect& expect) {
  if (!model.heads) return;
  const int64_t heads = *model.heads, kv_heads = model.kv_heads.value_or(heads);
  if (heads < 1 || kv_heads < 1) return;  // no layer has attention, or resolve_model says so
  expect(heads % tp == 0, "parallel.tp", cat("model.heads(", heads, ") % tp(", tp, ") = ", heads % tp),
         divisors_near("parallel.tp", heads, tp));
  if (heads % tp != 0) return;
  expect(kv_heads % tp == 0 || tp % kv_heads == 0, "parallel.tp",
         cat("neither of model.kv_heads(", kv_heads, ") and tp(", tp, ") divides the other"),
         divisors_near("parallel.tp", kv_heads, tp) + divisors_near("parallel.tp", heads, tp));
}

// Every rank of the axis has the same number of heads of a state space, and of its groups or of ranks that share one.
void state_space_problems(const ModelSection& model, int tp, const Expect& expect) {
  const int64_t heads = model.state_heads.value_or(0), groups = model.state_groups.value_or(1);
  if (heads < 1 || groups < 1 || heads % groups != 0) return;  // there are none, or resolve_model says so
  expect(heads % tp == 0, "parallel.tp", cat("model.state_heads(", heads, ") % tp(", tp, ") = ", heads % tp), divisors_near("parallel.tp", heads, tp));
  if (heads % tp != 0) return;
  expect(groups % tp == 0 || tp % groups == 0, "parallel.tp",
         cat("neither of model.state_groups(", groups, ") and tp(", tp, ") divides the other"),
         divisors_near("parallel.tp", groups, tp) + divisors_near("parallel.tp", heads, tp));
}

// Not constants: who starts before main() judges layouts too.
std::vector<Suggestion> some_zero() { return values_of("parallel.zero", {"1", "2", "3"}); }
Suggestion ring() { return {.changes = {{"parallel.data_parallel", "ring"}}}; }

// dp_replicate x dp_shard = dp, with dp_replicate as it is or near it.
std::vector<Suggestion> divisors_of_both(int64_t dp, int64_t replicate) {
  if (dp % replicate == 0) return values_of("parallel.dp_shard", {cat(dp / replicate)});
  std::vector<Suggestion> both = divisors_near("parallel.dp_replicate", dp, replicate);
  for (Suggestion& one : both) {
    const int64_t groups = std::stoll(*one.changes[0].value);
    one.changes.push_back({"parallel.dp_shard", cat(dp / groups)});
  }
  return both;
}

// The data-parallel ranks as groups that share out states.
void sharding_problems(const RunConfig& config, int64_t dp, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int zero = zero_stage(config);
  const int64_t shard = parallel.dp_shard, replicate = parallel.dp_replicate;
  expect(!parallel.fsdp || parallel.zero == 0 || parallel.zero == 3, "parallel.zero",
         cat("fsdp is zero 3, but zero = ", parallel.zero), {left_out("parallel.zero"), left_out("parallel.fsdp")});
  expect(zero > 0 || shard <= 1, "parallel.dp_shard",
         cat("dp_shard(", shard, ") groups ranks that share out states, but zero = 0 shares out none"),
         some_zero() + std::vector{left_out("parallel.dp_shard")});
  expect(zero == 0 || parallel.data_parallel == DataParallel::kRing, "parallel.data_parallel",
         cat("a parameter server holds all states itself, but zero = ", zero, " shares them out"),
         {ring(), parallel.fsdp ? left_out("parallel.fsdp") : Suggestion{.changes = {{"parallel.zero", "0"}}}});
  expect(parallel.reduce_precision == Precision::kFp32 || zero > 0, "parallel.reduce_precision",
         "reduce_precision bf16 with zero 0", some_zero() + std::vector{left_out("parallel.reduce_precision")});
  const bool alone = zero > 0 && parallel.cp == 1 && (shard == 1 || dp == 1 || (shard == 0 && replicate == dp));
  expect(parallel.reduce_precision == Precision::kFp32 || !alone, "parallel.reduce_precision",
         "reduce_precision bf16, but dp_shard = 1: nothing is sent to the owner of a shard",
         {left_out("parallel.reduce_precision")});
  if (shard > 0 && replicate > 0) {
    expect(shard * replicate == dp, "parallel.dp_shard",
           cat("[mesh] dp_replicate(", replicate, ") x dp_shard(", shard, ") = ", shard * replicate, ", but dp = ", dp),
           divisors_of_both(dp, replicate));
  } else if (const int64_t one = std::max(shard, replicate); one > 0) {
    const char* key = shard > 0 ? "parallel.dp_shard" : "parallel.dp_replicate";
    expect(dp % one == 0, key, cat("dp(", dp, ") % ", shard > 0 ? "dp_shard(" : "dp_replicate(", one, ") = ", dp % one),
           divisors_near(key, dp, one));
  }
}

// memory.offload with one more or less.
Suggestion offload_with(const std::vector<Offloaded>& kinds, std::string text) {
  std::vector<std::string> words;
  for (const Offloaded kind : kinds) words.push_back(name_of(kind));
  return {.changes = {{"memory.offload", words.empty() ? "\"\"" : join(words, ",")}}, .text = std::move(text)};
}

// What may live on the host, and what must come with it.
void offload_problems(const RunConfig& config, int64_t dp, const Expect& expect) {
  const MemorySection& memory = config.memory;
  const bool optimizer = memory.offload.has(Offloaded::kOptimizer), parameters = memory.offload.has(Offloaded::kParameters);
  const bool activations = memory.offload.has(Offloaded::kActivations);
  const int zero = zero_stage(config);
  std::vector<Offloaded> more = memory.offload.list, less = memory.offload.list;
  more.push_back(Offloaded::kOptimizer);
  std::erase(less, Offloaded::kActivations);
  expect(!parameters || optimizer, "memory.offload", "parameters on the host without the optimizer state",
         {offload_with(more, "add \"optimizer\": the update runs where the parameters live")});
  expect(!parameters || zero == 0 || zero == 3 || (dp == 1 && config.parallel.cp == 1), "memory.offload",
         cat("parameters on the host, but with zero ", zero, " every rank needs all of them after the update"),
         values_of("parallel.zero", {"3"}));
  expect(memory.offload.list.empty() || config.parallel.data_parallel == DataParallel::kRing, "memory.offload",
         "a parameter server that offloads", {ring()});
  expect(!activations || memory.recompute.has(Recompute::kFull), "memory.offload",
         "offload moves the inputs of layers that full recomputation keeps, but no block has recompute full",
         {Suggestion{.changes = {{"memory.recompute", "full"}}}, offload_with(less, "leave \"activations\" out")});
  if (config.model.layers && memory.recompute.list.size() != 1)
    expect(static_cast<int64_t>(memory.recompute.list.size()) == *config.model.layers, "memory.recompute",
           cat("recompute lists ", memory.recompute.list.size(), " blocks, but model.layers = ", *config.model.layers),
           {{.changes = {{"memory.recompute", "full"}}, .text = "name one for every block, or one word for all"}});
  expect(memory.disk_path.empty() || memory.host_limit.count > 0, "memory.disk_path",
         "disk_path takes what is beyond host_limit, and there is none",
         {{.changes = {{"memory.host_limit", "64GiB"}}, .text = "set memory.host_limit"}, left_out("memory.disk_path")});
  expect(memory.host_limit.count == 0 || !memory.offload.list.empty(), "memory.host_limit",
         "host_limit bounds what is offloaded, and nothing is",
         {offload_with({Offloaded::kOptimizer}, "set memory.offload"),
          {.changes = {{.key = "memory.host_limit"}, {.key = "memory.disk_path"}}, .text = "leave host_limit and disk_path out"}});
}

// The batch of a step in equal parts: so many microbatches on every rank.
void batch_problems(const RunConfig& config, int64_t dp, int world_size, const Expect& expect) {
  const TrainSection& train = config.train;
  const int64_t per_pass = saturating_mul(dp, train.micro_batch);
  if (train.global_batch % per_pass == 0) return;
  std::vector<Suggestion> ways = multiples_near("train.global_batch", batch_unit(config, world_size), train.global_batch);
  if (train.global_batch % dp == 0) ways = ways + divisors_near("train.micro_batch", train.global_batch / dp, train.micro_batch);
  expect(false, "train.global_batch",
         cat("global_batch(", train.global_batch, ") is not a multiple of dp(", dp, ") * micro_batch(", train.micro_batch,
             ") = ", size_text(per_pass)),
         ways);
}

Suggestion or_less(const char* key, const std::string& value) {
  const std::string name(key);
  return {.changes = {{name, value}}, .text = cat("use ", name.substr(name.find('.') + 1), " ", value, " or less")};
}

}  // namespace

int zero_stage(const RunConfig& config) { return config.parallel.fsdp ? 3 : config.parallel.zero; }

int64_t ranks_of_copy(const ParallelSection& parallel) {
  return saturating_mul(saturating_mul(parallel.tp, parallel.cp), parallel.pp);
}

int64_t data_parallel_size(const RunConfig& config, int world_size) {
  const ParallelSection& parallel = config.parallel;
  if (parallel.dp > 0) return parallel.dp;
  if (parallel.dp_replicate > 0 && parallel.dp_shard > 0) return int64_t{parallel.dp_replicate} * parallel.dp_shard;
  return std::max(int64_t{1}, world_size / ranks_of_copy(parallel));
}

DataDegrees data_degrees(const RunConfig& config, int world_size) {
  const ParallelSection& parallel = config.parallel;
  const int dp = static_cast<int>(data_parallel_size(config, world_size));
  if (zero_stage(config) == 0) return {.replicate = dp, .shard = 1};
  if (parallel.dp_shard > 0) return {.replicate = std::max(1, dp / parallel.dp_shard), .shard = parallel.dp_shard};
  const int replicate = std::max(1, parallel.dp_replicate);
  return {.replicate = replicate, .shard = std::max(1, dp / replicate)};
}

int ranks_wanted(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  const bool fixed = parallel.dp > 0 || (parallel.dp_replicate > 0 && parallel.dp_shard > 0);
  int64_t dp = parallel.dp > 0 ? parallel.dp : std::max(int64_t{1}, int64_t{parallel.dp_replicate}) * std::max(1, parallel.dp_shard);
  const int64_t experts = saturating_mul(parallel.ep, parallel.etp);
  if (!fixed) dp = saturating_mul(dp, experts / std::gcd(experts, saturating_mul(dp, saturating_mul(parallel.cp, parallel.tp))));
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(kMost, saturating_mul(dp, ranks_of_copy(parallel))));
}

int64_t microbatches(const RunConfig& config, int world_size) {
  return config.train.global_batch / saturating_mul(data_parallel_size(config, world_size), config.train.micro_batch);
}

int64_t microbatch_group(const RunConfig& config) {
  return config.parallel.schedule.kind == ScheduleKind::kInterleaved ? config.parallel.pp : 1;
}

int64_t batch_unit(const RunConfig& config, int world_size) {
  const int64_t per_pass = saturating_mul(data_parallel_size(config, world_size), config.train.micro_batch);
  return saturating_mul(per_pass, microbatch_group(config));
}

std::vector<LayoutProblem> layout_problems(const RunConfig& config, int world_size) {
  std::vector<LayoutProblem> problems;
  int depth = 0;
  const Expect expect = [&](bool holds, const char* key, std::string what, Ways ways) {
    if (holds) return;
    problems.push_back(
        {.key = key, .what = std::move(what), .ways = std::move(ways.list), .elsewhere = std::move(ways.elsewhere), .depth = depth});
  };
  const TrainSection& train = config.train;
  const OptimizerSection& optimizer = config.optimizer;
  const int64_t dp = data_parallel_size(config, world_size);

  if (too_many_ranks(config, world_size, expect)) return problems;
  depth = kRelationsDepth;
  mesh_problems(config, world_size, expect);
  tensor_parallel_problems(config.model, config.parallel.tp, expect);
  state_space_problems(config.model, config.parallel.tp, expect);
  pipeline_problems(config, expect);
  sharding_problems(config, dp, expect);
  offload_problems(config, dp, expect);
  context_problems(config, expect);
  expert_problems(config, world_size, expect);
  trace_problems(config, expect);

  batch_problems(config, dp, world_size, expect);
  if (config.model.max_seq_len) {
    expect(train.seq_len <= *config.model.max_seq_len, "train.seq_len",
           cat("seq_len(", train.seq_len, ") > model.max_seq_len(", *config.model.max_seq_len, ")"),
           {or_less("train.seq_len", cat(*config.model.max_seq_len))});
  }
  expect(optimizer.warmup_steps <= train.steps, "optimizer.warmup_steps",
         cat("warmup_steps(", optimizer.warmup_steps, ") > train.steps(", train.steps, ")"),
         {or_less("optimizer.warmup_steps", cat(train.steps))});
  expect(optimizer.min_lr <= optimizer.lr, "optimizer.min_lr",
         cat("min_lr(", number_text(optimizer.min_lr), ") > lr(", number_text(optimizer.lr), ")"),
         {or_less("optimizer.min_lr", number_text(optimizer.lr))});
  return problems;
}

std::string layout_heading(size_t problems) {
  return cat("this layout does not fit the launch (", problems, problems == 1 ? " problem" : " problems", ", nothing was started)");
}

void refuse_layout(const LoadedConfig& loaded, const std::vector<LayoutProblem>& problems) {
  if (problems.empty()) return;
  refuse(loaded, kLayoutCode, layout_heading(problems.size()), problems);
}

void check_layout(const LoadedConfig& loaded, int world_size) {
  std::vector<LayoutProblem> problems = layout_problems(loaded.config, world_size);
  const Rules rules = [](const Trial& trial) { return layout_problems(trial.loaded.config, trial.world_size); };
  keep_what_holds(problems, {.loaded = loaded, .world_size = world_size}, rules);
  refuse_layout(loaded, problems);
}

void check_layout(const RunConfig& config, int world_size) {
  check_layout(LoadedConfig{.config = config, .origin = {}}, world_size);
}

}  // namespace lockstep::config
