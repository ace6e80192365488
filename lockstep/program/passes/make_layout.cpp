#include "lockstep/program/passes/make_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/arch/layer_letters.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/passes/schedule_file.h"

namespace lockstep::program {
namespace {

using config::LayoutProblem;
using config::RunConfig;
using config::Suggestion;

constexpr int64_t kMostCuts = int64_t{1} << 29;  // that balanced_stages() compares
constexpr double kMostBytes = 4e18;              // of anything that is added up for one rank

// Larger microbatches that divide the batch of a rank; or a smaller batch.
std::vector<Suggestion> fewer_microbatches(const RunConfig& config, int world_size, int64_t microbatches, int64_t actions) {
  const int64_t most = kMostActions / std::max<int64_t>(1, actions / microbatches);
  const int64_t dp = config::data_parallel_size(config, world_size), of_rank = config.train.global_batch / dp;
  const int64_t least = of_rank / std::max<int64_t>(1, most);
  std::vector<Suggestion> ways = config::divisors_near("train.micro_batch", of_rank, least);
  std::erase_if(ways, [&](const Suggestion& way) { return std::stoll(*way.changes[0].value) < least; });
  const int64_t unit = config::batch_unit(config, world_size), batch = most * dp * config.train.micro_batch / unit * unit;
  if (batch > 0) ways.push_back({.changes = {{"train.global_batch", cat(batch)}}});
  return ways;
}

// More than any sum of bytes that is made of a rank: each of its parameters and activations is counted a few times a
// microbatch. A double holds it whatever the sizes are.
double bytes_of(const RunConfig& config, const arch::ModelConfig& model, int world_size, double microbatches) {
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const double hidden = number(model.hidden), heads = number(model.heads + 2 * model.kv_heads);
  const arch::ExpertSizes& experts = model.experts;
  const bool of_all = config.moe.static_buffers || experts.router == config::Router::kExpertChoice;  // every expert may get every row
  const double expert = number(experts.ffn), copies = number(of_all ? experts.count : experts.per_token) * config.parallel.ep * config.parallel.etp;
  const double routed = model.has_experts() ? 8 * (copies * (3 * expert + 3 * hidden) + 3 * number(experts.shared) * expert + 4 * number(experts.count)) : 0;
  const arch::StateSpaceSizes& scan = model.state_space;
  // What the scan keeps of a token: a state for each chunk, and where a GPU has no kernel for it a row of each chunk's products.
  const double chunk = number(std::max<int64_t>(1, scan.chunk)), inner = number(scan.heads) * number(scan.head_size);
  const double projected = 3 * inner + 4 * number(scan.groups) * number(scan.state) + number(scan.heads);
  const double scanned = model.has_state_space() ? 24 * projected + 16 * (inner * (number(scan.state) / chunk + 1) + number(scan.heads) * chunk) : 0;
  const double width = 24 * hidden + 24 * number(model.latent.projected()) + 8 * heads * (number(model.head_size) + 1) + 8 * number(model.ffn) + routed + scanned;
  const arch::LatentSizes& latent = model.latent;
  const double of_latent = number(latent.projected()) * (hidden + number(model.heads) * number(latent.head() + latent.value));
  const double layers = number(model.layers) + 2, vocabulary = number(model.vocab_size);
  const double tokens = number(config.train.micro_batch) * (number(config.train.seq_len) + 48);
  const double scratch = number(std::max(1, config.train.threads)) * 64 * (number(config.train.seq_len) + 500) *
                         (number(model.head_size) + 64);
  const double of_experts = model.has_experts() ? (number(experts.count) + number(experts.shared)) * (3 * expert + 1) : 0;
  const double of_scan = model.has_state_space() ? projected * (2 * hidden + number(scan.convolution) + 1) : 0;
  const double parameters = layers * (of_latent + of_scan) + layers * hidden * (heads * number(model.head_size) + hidden + 3 * number(model.ffn) + of_experts + 16) +
                            hidden * (2 * vocabulary + number(model.max_seq_len));
  const double logits = 1024 * vocabulary;
  const bool server = config.parallel.data_parallel == config::DataParallel::kParameterServer;  // sends to all ranks
  return (server ? world_size : 1) * 16 * (microbatches + 2) * (4 * parameters + layers * (8 * tokens * width + scratch) + logits);
}

Suggestion named_blocks(int64_t stages, int64_t layers) {
  const std::string blocks = config::blocks_text(config::even_blocks(stages, layers));
  return {.changes = {{"parallel.layers_per_stage", blocks}},
          .text = cat("name the blocks of every stage: layers_per_stage = ", blocks)};
}

// Sizes that a rank's bytes are products of, each by itself as small as it must be.
std::vector<Suggestion> fewer_bytes(const RunConfig& config, const arch::ModelConfig& model, int world_size, double bytes) {
  const auto share = [&](int64_t size) { return static_cast<int64_t>(static_cast<double>(size) / (bytes / kMostBytes)); };
  const config::TrainSection& train = config.train;
  return config::powers_below("train.seq_len", std::max<int64_t>(1, share(train.seq_len))) +
         config::powers_below("train.micro_batch", std::max<int64_t>(1, share(train.micro_batch))) +
         config::powers_below("train.global_batch", train.global_batch, config::batch_unit(config, world_size)) +
         config::powers_below("model.layers", std::max<int64_t>(1, share(model.layers)));
}

// What is too large, each with its equation and values that fit. Of a configuration whose other relations hold.
std::vector<LayoutProblem> extent_problems(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  std::vector<LayoutProblem> problems;
  const int64_t microbatches = config::microbatches(config, world_size), pp = config.parallel.pp;
  const int64_t actions = actions_of(config, model, world_size);
  if (actions > kMostActions)
    problems.push_back({.key = "train.global_batch",
                        .what = cat("F and B of ", model.layers + 2, " layers x ", microbatches, " microbatches = ",
                                    size_text(actions), " actions, more than ", kMostActions),
                        .ways = fewer_microbatches(config, world_size, microbatches, actions)});
  const int64_t stages = pp * config::pipeline_choice(config).virtual_stages, layers = model.layers + 2;
  const int64_t cuts = saturating_mul(stages, saturating_mul(layers, layers)) / 2;
  if (pp > 1 && config.parallel.layers_per_stage.list.empty() && cuts > kMostCuts)
    problems.push_back({.key = "parallel.layers_per_stage",
                        .what = cat("to balance ", layers, " layers over ", stages, " stages is to compare ", size_text(cuts),
                                    " cuts, more than ", kMostCuts),
                        .ways = {named_blocks(stages, model.layers)}});
  const double bytes = bytes_of(config, model, world_size, static_cast<double>(microbatches));
  if (bytes > kMostBytes)
    problems.push_back({.key = "train.micro_batch",
                        .what = cat("parameters and activations of ", microbatches, " microbatches x micro_batch(",
                                    config.train.micro_batch, ") x seq_len(", config.train.seq_len, ") come to about ", bytes,
                                    " bytes, more than 64 bits count"),
                        .ways = fewer_bytes(config, model, world_size, bytes)});
  return problems;
}

std::vector<arch::Recompute> recompute_of(const config::MemorySection& memory, int64_t layers) {
  std::vector<arch::Recompute> blocks = memory.recompute.list;
  if (blocks.size() == 1) blocks.resize(static_cast<size_t>(layers), blocks[0]);
  return blocks;
}

std::string grid_of(const RunConfig& config) { return config.parallel.schedule.grid.value_or(""); }

// With what the configuration leaves to the grid of a file.
config::PipelineChoice choice_of(const RunConfig& config) {
  config::PipelineChoice choice = config::pipeline_choice(config);
  if (choice.virtual_stages == 0) choice.virtual_stages = std::max(1, read_grid(grid_of(config)).virtual_stages());
  return choice;
}

Pipeline pipeline_of(const RunConfig& config, const arch::ModelConfig& model) {
  const config::PipelineChoice choice = choice_of(config);
  Pipeline pipeline{.kind = config.parallel.schedule.kind, .ranks = config.parallel.pp,
                    .virtual_stages = choice.virtual_stages, .grid = grid_of(config)};
  pipeline.post_validation = choice.post_validation;
  pipeline.grid_in_v = pipeline.kind == ScheduleKind::kFile && read_grid(pipeline.grid).in_v();
  if (!choice.blocks.empty())
    pipeline.first_layer = stages_of_blocks(choice.blocks);
  else
    pipeline.first_layer = balanced_stages(model,
                                           {.batch = config.train.micro_batch,
                                            .seq_len = config.train.seq_len,
                                            .tensor = {.size = config.parallel.tp,
                                                       .experts = {.ep = config.parallel.ep, .etp = config.parallel.etp}},
                                            .moe = config.moe,
                                            .dispatcher = config.parallel.dispatcher,
                                            .node_ranks = std::max(1, config.parallel.ranks_per_node),
                                            .context = {.ranks = config.parallel.cp,
                                                        .kind = config.parallel.context,
                                                        .inner = config.parallel.context_inner,
                                                        .split = config.parallel.context_split}},
                                           pipeline.stages());
  return pipeline;
}

// What the schedule says of its own; not of a key in which something else is wrong already.
std::vector<LayoutProblem> schedule_problems_of(const RunConfig& config, int world_size, const std::vector<LayoutProblem>& known) {
  const auto wrong = [&](const std::string& key) {
    return std::any_of(known.begin(), known.end(), [&](const LayoutProblem& problem) { return problem.key == key; });
  };
  std::vector<LayoutProblem> found;
  if (config.parallel.pp == 1 || wrong("parallel.schedule") || wrong("parallel.virtual_stages")) return found;
  const ScheduleInput input{.kind = config.parallel.schedule.kind,
                            .ranks = config.parallel.pp,
                            .virtual_stages = choice_of(config).virtual_stages,
                            .microbatches = static_cast<int>(std::max(int64_t{1}, config::microbatches(config, world_size))),
                            .grid = grid_of(config),
                            .sequences = config.train.micro_batch * config::data_parallel_size(config, world_size)};
  for (LayoutProblem& problem : schedule_problems(input))
    if (!wrong(problem.key)) found.push_back(std::move(problem));
  return found;
}

Offload offload_of(const config::MemorySection& memory) {
  return {.optimizer = memory.offload.has(config::Offloaded::kOptimizer),
          .parameters = memory.offload.has(config::Offloaded::kParameters),
          .activations = memory.offload.has(config::Offloaded::kActivations),
          .host_limit = memory.host_limit.count,
          .disk = !memory.disk_path.empty()};
}

// In bf16 a GPU runs flash attention (nn/attention_core.cpp), whose heads are at most so wide.
constexpr int64_t kMostFlashWidth = 256;

std::vector<LayoutProblem> head_problems_of(const RunConfig& config, const arch::ModelConfig& model) {
  std::vector<LayoutProblem> found;
  if (config.train.device != config::Device::kCuda || config.train.precision != config::Precision::kBf16) return found;
  const auto at_most = [&](int64_t width, const std::string& what) {
    if (width <= kMostFlashWidth) return;
    found.push_back({.key = "train.precision",
                     .what = cat(what, " is above ", kMostFlashWidth, ", the widest head of flash attention, which device \"cuda\" runs in bf16"),
                     .ways = config::values_of("train.precision", {"fp32"}) + config::values_of("train.device", {"cpu"})});
  };
  const arch::LatentSizes& latent = model.latent;
  if (!arch::has_attention(model)) return found;
  if (!model.has_latent()) {
    at_most(model.head_size, cat("head_size(", model.head_size, ")"));
    return found;
  }
  at_most(latent.head(), cat("qk_nope_head_dim(", latent.nope, ") + qk_rope_head_dim(", latent.rope, ") = ", latent.head()));
  at_most(latent.value, cat("v_head_dim(", latent.value, ")"));
  return found;
}

// Rules that name parameters by what the model has.
std::vector<LayoutProblem> rule_problems_of(const RunConfig& config, const arch::ModelConfig& model) {
  std::vector<LayoutProblem> found;
  if (config.optimizer.rules.list.empty()) return found;
  std::vector<arch::ParamSpec> table = arch::param_table(model);
  for (std::string& what : arch::rule_problems(config.optimizer, table))
    found.push_back({.key = "optimizer.rules", .what = std::move(what), .ways = {config::left_out("optimizer.rules")}});
  if (!found.empty() || config.parallel.ep == 1) return found;
  arch::choose_optimizers(config.optimizer, table);
  // Ranks of ep have other experts of a block, and one list of actions.
  std::map<std::pair<int, std::string>, const arch::ParamSpec*> first;  // by block and "gate.weight": of its first expert
  for (const arch::ParamSpec& spec : table) {
    if (spec.expert < 0) continue;
    const std::string part = spec.name.substr(spec.name.rfind('.', spec.name.rfind('.') - 1) + 1);
    const arch::ParamSpec& other = *first.try_emplace({spec.layer, part}, &spec).first->second;
    if (other.update.optimizer == spec.update.optimizer) continue;
    found.push_back({.key = "optimizer.rules",
                     .what = cat("optimizer.rules gives ", other.name, " to ", other.update.optimizer->id, " and ", spec.name, " to ",
                                 spec.update.optimizer->id, ", but with ep(", config.parallel.ep,
                                 ") all ranks update the experts of a block alike"),
                     .ways = std::vector{config::left_out("optimizer.rules")} + config::values_of("parallel.ep", {"1"})});
    break;
  }
  return found;
}

// The RMSNorm of a state space's output over groups of its heads: whole ones on each rank, or one over all ranks.
std::vector<LayoutProblem> scan_problems_of(const RunConfig& config, const arch::ModelConfig& model) {
  const int64_t tp = config.parallel.tp, groups = model.state_space.norm_groups;
  if (!model.has_state_space() || groups <= 1 || groups % tp == 0) return {};
  return {{.key = "parallel.tp",
           .what = cat("norm_groups(", groups, ") of the model's state spaces % tp(", tp, ") = ", groups % tp),
           .ways = config::divisors_near("parallel.tp", groups, tp)}};
}

// Kinds of branches of a program's own that no layout cuts.
std::vector<LayoutProblem> kind_problems_of(const RunConfig& config, const arch::ModelConfig& model) {
  std::vector<LayoutProblem> found;
  std::set<std::string> kinds;
  for (const arch::BlockSpec& block : model.blocks)
    for (const arch::Branch& branch : block) kinds.insert(branch.kind);
  const auto refuse = [&](bool refused, const char* key, std::string what, std::vector<Suggestion> ways) {
    if (refused) found.push_back({.key = key, .what = std::move(what), .ways = std::move(ways)});
  };
  for (const std::string& id : kinds) {
    const arch::BranchKind& kind = arch::branch_kind(id);
    const config::ParallelSection& parallel = config.parallel;
    refuse(kind.whole_only && parallel.tp > 1, "parallel.tp", cat("tp(", parallel.tp, ") ranks would share branches \"", id, "\", which are not cut"),
           config::values_of("parallel.tp", {"1"}));
    refuse(kind.whole_sequences && parallel.cp > 1, "parallel.cp",
           cat("cp(", parallel.cp, ") ranks would hold parts of sequences, which branches \"", id, "\" take whole"),
           config::values_of("parallel.cp", {"1"}));
    const bool packs = config.data.pack == config::Pack::kDocuments;
    refuse(kind.whole_sequences && (packs || config.data.masks_documents() || config.data.resets_positions()),
           packs ? "data.pack" : "data.document_mask",
           cat(packs ? "pack = \"documents\"" : "documents are told apart", ", but branches \"", id, "\" know none"),
           config::values_of("data.pack", {"stream"}) + config::values_of("data.document_mask", {"false"}));
  }
  return found;
}

}  // namespace

int64_t actions_of(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  return saturating_mul(config::microbatches(config, world_size), 2 * (model.layers + 2));
}

// Relations of the configuration alone hide what is too large, and that hides what a schedule says by itself.
static constexpr int kExtentDepth = config::kRelationsDepth + 1, kScheduleDepth = kExtentDepth + 1;
static_assert(kScheduleDepth < kDepthsOfLayout);

std::vector<LayoutProblem> layout_problems(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  RunConfig resolved = config;
  resolved.model.max_seq_len = model.max_seq_len;
  resolved.model.layers = model.layers;
  resolved.model.heads = arch::has_attention(model) ? model.heads : 0;
  resolved.model.kv_heads = model.kv_heads;
  resolved.model.state_heads = model.state_space.heads;
  resolved.model.state_groups = model.state_space.groups;
  resolved.model.experts = model.experts.count;
  resolved.model.expert_ffn = model.experts.ffn;
  resolved.model.router = model.experts.router;
  if (const auto& grid = config.parallel.schedule.grid; config.parallel.pp > 1 && config.parallel.virtual_stages == 0 && grid)
    resolved.parallel.virtual_stages = read_grid(*grid).virtual_stages();
  std::vector<LayoutProblem> problems = config::layout_problems(resolved, world_size);
  if (!problems.empty() && problems.front().depth < config::kRelationsDepth) return problems;
  // A schedule is read microbatch by microbatch: not of a job that is too large to be planned.
  int depth = config::kRelationsDepth;
  if (problems.empty()) {
    std::vector<LayoutProblem> beyond = extent_problems(resolved, model, world_size);
    for (LayoutProblem& problem : beyond) problem.depth = kExtentDepth;
    if (!beyond.empty()) return beyond;
    depth = kScheduleDepth;
  }
  for (std::vector<LayoutProblem>& beyond : std::array{schedule_problems_of(config, world_size, problems), rule_problems_of(config, model),
                                                       head_problems_of(config, model), scan_problems_of(config, model),
                                                       kind_problems_of(config, model)})
    for (LayoutProblem& problem : beyond) {
      problem.depth = depth;
      problems.push_back(std::move(problem));
    }
  return problems;
}

Layout make_layout(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  return make_layout(config::LoadedConfig{.config = config, .origin = {}}, model, world_size);
}

Layout make_layout(const config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size) {
  const RunConfig& config = loaded.config;
  std::vector<LayoutProblem> problems = layout_problems(config, model, world_size);
  const config::Rules rules = [&](const config::Trial& trial) { return layout_problems(trial.loaded.config, model, trial.world_size); };
  keep_what_holds(problems, {.loaded = loaded, .world_size = world_size}, rules);
  config::refuse_layout(loaded, problems);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  const config::DataDegrees data = config::data_degrees(config, world_size);
  degrees[mesh::Axis::kDpReplicate] = data.replicate;
  degrees[mesh::Axis::kDpShard] = data.shard;
  degrees[mesh::Axis::kCp] = config.parallel.cp;
  degrees[mesh::Axis::kTp] = config.parallel.tp;
  degrees[mesh::Axis::kPp] = config.parallel.pp;
  Layout layout{.model = model,
                .mesh = mesh::Mesh(degrees),
                .pipeline = pipeline_of(config, model),
                .global_batch = config.train.global_batch,
                .micro_batch = config.train.micro_batch,
                .seq_len = config.train.seq_len,
                .precision = config.train.precision,
                .optimizer = config.optimizer,
                .data_parallel = config.parallel.data_parallel,
                .bucket_bytes = std::llround(config.parallel.bucket_mib * static_cast<double>(kMiB)),
                .zero = config::zero_stage(config),
                .prefetch = config.parallel.prefetch,
                .prefetch_limit = config.parallel.prefetch_limit.count,
                .reshard_after_forward = config.parallel.reshard_after_forward,
                .reshard_after_microbatch = config.parallel.reshard_after_microbatch,
                .reduce_precision = config.parallel.reduce_precision,
                .recompute = recompute_of(config.memory, model.layers),
                .offload = offload_of(config.memory),
                .device_limit = config.memory.device_limit.count,
                .sequence_parallel = config.parallel.sequence_parallel,
                .row_groups = config.parallel.row_groups,
                .overlap = config.parallel.overlap,
                .threads = std::max(1, config.train.threads)};
  layout.context = config.parallel.context;
  layout.context_inner = config.parallel.context_inner;
  layout.context_split = config.parallel.context_split;
  layout.document_mask = config.data.masks_documents();
  layout.reset_positions = config.data.resets_positions();
  layout.pack = config.data.pack;
  layout.moe = config.moe;
  layout.optimizer.bias_rate = config.moe.bias_rate;
  layout.ep = config.parallel.ep;
  layout.etp = config.parallel.etp;
  layout.overlap_experts = config.parallel.overlap_experts;
  layout.dispatcher = config.parallel.dispatcher;
  layout.node_ranks = std::max(1, config.parallel.ranks_per_node);
  return layout;
}

}  // namespace lockstep::program
