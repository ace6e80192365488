#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/plan/evidence/run_layout.h"

namespace lockstep::plan {
namespace {

using config::Recompute;
using config::ScheduleKind;

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError({.code = "LS1146", .what = what, .way_out = "it cannot be predicted from what is printed"});
}

// At least 1 of what the row prints.
int degree(const std::optional<int64_t>& printed) {
  return static_cast<int>(std::clamp<int64_t>(printed.value_or(1), 1, config::kMostRanks));
}

void set_ranks(const PublishedRun& run, RunFrame& frame) {
  const RunLayout& row = run.layout;
  config::ParallelSection& parallel = frame.config.parallel;
  if (!row.tp || !row.pp) refuse("degrees of parallelism are not printed: tp, pp");
  parallel.tp = degree(row.tp);
  parallel.pp = degree(row.pp);
  parallel.cp = degree(row.cp);
  const int64_t copy = config::ranks_of_copy(parallel);
  if (run.gpus % copy != 0) refuse(cat("tp x cp x pp = ", copy, " does not divide ", run.gpus, " devices"));
  parallel.dp = static_cast<int>(run.gpus / copy);
  if (row.dp && *row.dp != parallel.dp) frame.notes.push_back(cat("dp ", parallel.dp, ", which is what the devices leave, instead of ", *row.dp));
}

// The largest degrees up to those of the row that share out experts and ranks.
void set_experts(const PublishedRun& run, RunFrame& frame) {
  if (!run.model.experts) return;
  config::ParallelSection& parallel = frame.config.parallel;
  const int64_t ranks = int64_t{parallel.dp} * parallel.cp * parallel.tp;
  const int64_t etp = degree(run.layout.etp), wanted = degree(run.layout.ep);
  int64_t ep = wanted;
  while (ep > 1 && (frame.model.experts.count % ep != 0 || ranks % (ep * etp) != 0)) --ep;
  parallel.etp = static_cast<int>(etp);
  parallel.ep = static_cast<int>(ep);
  if (ep != wanted) frame.notes.push_back(cat("ep ", ep, " instead of ", wanted, ": it has to divide experts and the ranks of a stage"));
  // Libraries of 2024 send a token once to a node and on from there (DeepEP; arXiv:2412.19437, section 3.2.2).
  const int node = frame.cluster.domain;
  const int64_t group = ep * etp;
  if (frame.stack.kernels != Kernels::kCurrent || node <= 1 || group <= node || group % node != 0) return;
  parallel.dispatcher = config::Dispatcher::kHierarchical;
  parallel.ranks_per_node = node;
}

void set_schedule(const PublishedRun& run, RunFrame& frame) {
  const std::string word = run.layout.schedule.value_or("1F1B");
  if (has_word(word, "DualPipe")) {
    frame.schedule = ScheduleKind::kDualPipeV;
    frame.notes.emplace_back("DualPipe as dualpipe-v, its half with one copy of the parameters");
  } else if (has_word(word, "ZBV") || has_word(word, "zb-v")) {
    frame.schedule = ScheduleKind::kZbV;
  } else if (has_word(word, "ZB") || has_word(word, "zb")) {
    frame.schedule = ScheduleKind::kZbH1;
  } else if (has_word(word, "GPipe") || has_word(word, "gpipe")) {
    frame.schedule = ScheduleKind::kGPipe;
  } else if (!has_word(word, "1F1B") && !has_word(word, "1f1b") && !has_word(word, "nterleaved")) {
    frame.notes.push_back(cat("schedule \"", word, "\" is not known here: 1f1b"));
  }
}

void set_batch(const PublishedRun& run, RunFrame& frame) {
  const RunLayout& row = run.layout;
  config::TrainSection& train = frame.config.train;
  train.seq_len = *run.model.seq;
  if (row.global_batch)
    train.global_batch = *row.global_batch;
  else if (row.micro_batch && row.microbatches)
    train.global_batch = *row.micro_batch * *row.microbatches * frame.config.parallel.dp;
  else
    refuse("global_batch is not printed");
  if (train.global_batch < 1) refuse(cat("global_batch is ", train.global_batch));
  frame.tokens = static_cast<double>(train.global_batch) * static_cast<double>(train.seq_len);
}

void set_precision(const PublishedRun& run, RunFrame& frame) {
  const std::string& word = run.layout.precision;
  frame.config.train.precision = word == "fp32" || word == "tf32" ? config::Precision::kFp32 : config::Precision::kBf16;
  if (low_precision(run)) frame.options.linears = Linears::kFp8;
  if (word == "fp16") frame.notes.emplace_back("fp16 as bf16, of the same size");
  if (has_word(word, "fp4")) frame.notes.push_back(cat(word, " as FP8 at the rate of FP4: operands take twice their bytes"));
  if (frame.options.linears == Linears::kFp8 && frame.cluster.device.flops_fp8 <= 0)
    refuse(cat("precision ", word, ", but ", run.device, " has no FP8"));
}

// How software of that time communicates. Gradients were summed in fp32 behind the whole backward pass of a pipeline (Megatron-LM of 2021);
// buckets are those of PyTorch's DDP, later those of Megatron: 40 M parameters, or 1 M for each data-parallel rank.
void set_communication(RunFrame& frame) {
  config::ParallelSection& parallel = frame.config.parallel;
  const bool old = frame.stack.kernels == Kernels::kUnfused, piped = parallel.pp > 1;
  parallel.overlap = !(old && piped);
  if (!old || piped) parallel.bucket_mib = std::max(160e6, 4e6 * parallel.dp) / static_cast<double>(kMiB);
  parallel.prefetch_limit.count = int64_t{1} << 40;
  // Under a pipeline PyTorch keeps what it has gathered until all microbatches are through (torchtitan, fully_shard of parallelize).
  if (piped) parallel.reshard_after_forward = parallel.reshard_after_microbatch = false;
}

// What no part of the model can say: the vocabulary in equal parts, key heads in equal parts or shared by equally many ranks.
void fit_to_tensor_ranks(RunFrame& frame) {
  arch::ModelConfig& model = frame.model;
  const int64_t tp = frame.config.parallel.tp;
  if (model.vocab_size % tp != 0) {
    const int64_t unit = 128 * tp, padded = (model.vocab_size + unit - 1) / unit * unit;
    frame.notes.push_back(cat("vocabulary of ", model.vocab_size, " padded to ", padded));
    model.vocab_size = padded;
  }
  if (model.has_latent() || model.heads % tp != 0 || model.kv_heads % tp == 0 || tp % model.kv_heads == 0) return;
  int64_t heads = model.kv_heads;
  while (model.heads % heads != 0 || (heads % tp != 0 && tp % heads != 0)) ++heads;
  frame.notes.push_back(cat(heads, " key/value heads instead of ", model.kv_heads, ", which tp ", tp, " does not share out"));
  model.kv_heads = heads;
}

// Jobs take so many trays of a rack that groups of a power of two stay in it.
void set_domain(RunFrame& frame) {
  Cluster& cluster = frame.cluster;
  if (cluster.domain <= cluster.devices_per_node || frame.gpus <= cluster.domain) return;
  int domain = cluster.devices_per_node;
  while (2 * domain <= cluster.domain) domain *= 2;
  if (domain == cluster.domain || frame.gpus % domain != 0) return;
  frame.notes.push_back(cat(domain, " of ", cluster.domain, " devices of each NVLink domain are used"));
  cluster.domain = domain;
}

void add_word_notes(const PublishedRun& run, RunFrame& frame) {
  const std::string word = run.layout.recompute.value_or("none");
  const std::optional<Recompute> known = recompute_in_words(run.layout.recompute);
  if (run.layout.recompute && !known) frame.notes.push_back(cat("recompute \"", word, "\" is not known here: open"));
  if (known == Recompute::kSelective && word != "selective")
    frame.notes.push_back(cat("recompute \"", word, "\" as selective", recomputes_products(run) ? ", with half the products" : ""));
  if (frame.stack.unfused_beside_windows > 0)
    frame.notes.emplace_back("attention without a window unfused: precision bf16 stands for kernels without sinks");
  for (const std::string& flag : run.flags)
    if (flag.starts_with("algorithm")) frame.notes.push_back(flag);
}

}  // namespace

std::optional<Recompute> recompute_in_words(const std::optional<std::string>& word) {
  if (!word) return std::nullopt;
  const std::string text = lower(*word);
  if (text == "none" || text == "false" || text.empty()) return Recompute::kNone;
  if (has_word(*word, "selective") || has_word(*word, "SAC")) return Recompute::kSelective;
  return text.starts_with("full") ? std::optional(Recompute::kFull) : std::nullopt;
}

RunFrame frame_of(const PublishedRun& run, const RunSource& source) {
  RunFrame frame{.gpus = run.gpus};
  frame.flops = flops_of_token(run.model);
  MappedModel mapped = model_of(run);
  frame.model = std::move(mapped.model);
  frame.notes = std::move(mapped.notes);
  frame.cluster = cluster_of(run, source);
  frame.stack = stack_of_run(run, frame.cluster.device);
  set_domain(frame);
  set_ranks(run, frame);
  set_experts(run, frame);
  set_schedule(run, frame);
  set_batch(run, frame);
  set_precision(run, frame);
  set_communication(frame);
  fit_to_tensor_ranks(frame);
  add_word_notes(run, frame);
  frame.config.parallel.sequence_parallel = run.layout.sequence_parallel.value_or(frame.stack.kernels != Kernels::kUnfused);
  frame.options.traffic = false;
  return frame;
}

}  // namespace lockstep::plan
