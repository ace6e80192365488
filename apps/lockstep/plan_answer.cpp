#include <algorithm>

#include "apps/lockstep/plan_report.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/plan/other_choices.h"
#include "lockstep/plan/room.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/time/goodput.h"
#include "lockstep/plan/what_if.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::apps {
namespace {

// Of a node and hour: 419 unexpected interruptions in 54 days of 16,384 GPUs in 2,048 nodes, 419 / (54 x 24 x 2048) (The Llama 3 Herd of Models,
// arXiv:2407.21783, section 3.3.4; of 466 interruptions 47 were planned).
constexpr double kFailures = 1.58e-4;

using plan::Candidate;
using plan::SearchResult;
using plan::StepEstimate;

// Keys of a layout would speak against each candidate.
config::RunConfig without_layout(config::RunConfig config) {
  for (const std::string key : layout_keys()) config::find_field(key)->reset(config);
  return config;
}

class Answering {
 public:
  Answering(const PlanQuestion& question, const AnswerOptions& options)
      : question_(question), options_(options), config_(without_layout(question.loaded.config)) {}

  PlanAnswer answer() {
    answer_.search = search(question_.search);
    choose();
    answer_.run = {.tokens = question_.tokens, .devices = question_.devices};
    if (answer_.layout) about_layout();
    for (const std::string& text : question_.why_not) answer_.opposites.push_back(opposite(text));
    return std::move(answer_);
  }

 private:
  SearchResult search(const plan::SearchOptions& options) const {
    return plan::search_layouts(config_, question_.model, question_.cluster, question_.stack, options);
  }
  program::Layout layout_of(const Candidate& candidate) const {
    return program::make_layout(plan::with_candidate(config_, candidate), question_.model, plan::devices_of(candidate));
  }
  StepEstimate estimate(const program::Layout& layout, const plan::Cluster& cluster) const {
    plan::EstimateOptions options = question_.options;
    options.spans = options_.boxes;
    return plan::estimate_step(layout, cluster, question_.stack, options);
  }

  void choose() {
    if (question_.layout) {
      answer_.layout = question_.layout;
      answer_.config = question_.loaded.config;
      answer_.candidate = candidate_of(*answer_.layout);
    } else if (!answer_.search.best.empty()) {
      answer_.candidate = answer_.search.best[0].candidate;
      answer_.config = plan::with_candidate(config_, answer_.candidate);
      answer_.rows_limit = plan::rows_limit(answer_.config, question_.options.imbalance);
      if (answer_.rows_limit) answer_.config.moe.imbalance_limit = answer_.rows_limit;
      answer_.layout = layout_of(answer_.candidate);
    }
  }

  void about_layout() {
    const program::Layout& layout = *answer_.layout;
    answer_.estimate = estimate(layout, question_.cluster);
    if (!answer_.estimate.fits) answer_.ways_out = ways_out(layout);
    if (question_.cluster.slow != plan::Slowness{}) answer_.healthy = estimate(layout, plan::healthy(question_.cluster));
    if (options_.what_ifs) what_ifs(layout);
    goodput(layout);
  }

  void what_ifs(const program::Layout& layout) {
    answer_.what_ifs = plan::other_choices({.config = config_, .model = question_.model, .cluster = question_.cluster, .stack = question_.stack,
                                            .options = question_.options, .candidate = answer_.candidate}, answer_.estimate);
    for (plan::WhatIf& one : plan::what_ifs({.layout = layout, .cluster = question_.cluster, .stack = question_.stack, .options = question_.options},
                                            answer_.estimate))
      answer_.what_ifs.push_back(std::move(one));
  }

  // What a rank may allocate at most, so that with all else that a device holds it fits.
  std::string ways_out(const program::Layout& layout) const {
    const double bytes = (question_.cluster.device.memory - question_.stack.reserved) / (1 + question_.stack.fragmentation);
    const plan::Room room{.kind = plan::Room::Kind::kLimit, .bytes = static_cast<int64_t>(bytes), .source = question_.cluster.device.name};
    const int rank = answer_.estimate.worst_stage * layout.pipelines();
    return plan::ways_text(plan::ways_out(answer_.config, layout, {.rank = rank, .room = room}), room);
  }

  // Of the ranks of this layout.
  void goodput(const program::Layout& layout) {
    plan::Cluster cluster = question_.cluster;
    if (cluster.disk_bandwidth <= 0 || cluster.device.pcie <= 0) return;
    const std::string said = cat(number_text(cluster.failures), " of a node and hour, as the cluster says");
    const std::string assumed = cat("assumed: ", number_text(kFailures), " of a node and hour, as in 54 days of Llama 3 (arXiv:2407.21783, 3.3.4); ",
                                    "a cluster file says `failures`");
    answer_.failures = cluster.failures > 0 ? said : assumed;
    if (cluster.failures <= 0) cluster.failures = kFailures;
    const int ranks = layout.mesh.world_size(), nodes = std::max(1, ranks / cluster.devices_per_node);
    const config::CheckpointSection& checkpoint = question_.loaded.config.checkpoint;
    double interval = 0;
    if (is_given(question_.loaded, "checkpoint.every"))
      interval = checkpoint.every.seconds ? *checkpoint.every.seconds : static_cast<double>(*checkpoint.every.steps) * answer_.estimate.seconds;
    const plan::SaveSeconds save = plan::save_seconds(cluster, plan::checkpoint_bytes(layout),
                                                      {.ranks = ranks, .asynchronous = checkpoint.asynchronous});
    answer_.goodput = plan::goodput_of(cluster, save, {.nodes = nodes, .interval = interval});
    answer_.run.useful = answer_.goodput->useful;
  }

  // The strongest layout with these fields.
  Opposite opposite(const std::string& text) const {
    const plan::Fixed fixed = plan::parse_fixed(text);
    plan::SearchOptions options = question_.search;
    for (const auto& [field, value] : fixed.values) options.fixed.values[field] = value;
    options.keep = 1;
    options.sensitivity = false;
    const SearchResult found = search(options);
    const Candidate base = answer_.search.best.empty() ? Candidate{} : answer_.search.best[0].candidate;
    Candidate candidate = with_fields(base, fixed, question_.devices);
    if (!found.misses.empty()) candidate = found.misses[0].candidate;
    if (!found.best.empty()) candidate = found.best[0].candidate;
    const std::string against = plan::why_not(config_, question_.model, question_.cluster, question_.stack, candidate, answer_.search);
    Opposite opposite{.said = {.layout = text, .text = cat(plan::describe(candidate), ": ", against)}};
    if (!found.best.empty()) opposite.estimate = estimate(layout_of(candidate), question_.cluster);
    return opposite;
  }

  const PlanQuestion& question_;
  const AnswerOptions& options_;
  const config::RunConfig config_;
  PlanAnswer answer_;
};

}  // namespace

Candidate candidate_of(const program::Layout& layout) {
  return {.tp = layout.mesh.degree(mesh::Axis::kTp),
          .pp = layout.pipeline.ranks,
          .cp = layout.mesh.degree(mesh::Axis::kCp),
          .ep = layout.ep,
          .etp = layout.etp,
          .dp = layout.mesh.degree(layout.samples()),
          .virtual_stages = layout.pipeline.virtual_stages,
          .zero = layout.zero,
          .micro_batch = static_cast<int>(layout.micro_batch),
          .recompute = layout.recompute.empty() ? config::Recompute::kNone : layout.recompute.front(),
          .schedule = layout.pipeline.kind,
          .sequence_parallel = layout.sequence_parallel,
          .offload_optimizer = layout.offload.optimizer,
          .dp_replicate = layout.zero > 0 ? layout.mesh.degree(mesh::Axis::kDpReplicate) : 1};
}

Candidate with_fields(Candidate base, const plan::Fixed& fixed, int devices) {
  base = plan::with_fixed(base, fixed);
  if (!fixed.values.contains("dp")) base.dp = std::max(1, devices / (base.tp * base.pp * base.cp));
  return base;
}

PlanAnswer plan_answer(const PlanQuestion& question, const AnswerOptions& options) { return Answering(question, options).answer(); }

}  // namespace lockstep::apps
