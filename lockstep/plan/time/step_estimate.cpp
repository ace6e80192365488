#include "lockstep/plan/time/step_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <set>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/plan/time/breakdown.h"
#include "lockstep/plan/time/stage_memory.h"
#include "lockstep/plan/time/step_walk.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::plan {
namespace {

constexpr int64_t kDrawnStep = int64_t{1} << 18;  // F and B up to which a step is drawn whole

// Shares of full speed of the slowest rank that the one at each coordinate on pp works with inside layers, and of its node's NICs.
struct Speeds {
  std::vector<double> devices{}, nics{};
  auto operator<=>(const Speeds&) const = default;
};

double share_of(const std::map<int, double>& shares, int node) {
  const auto found = shares.find(node);
  return found == shares.end() ? 1 : found->second;
}

double speed_of(const program::Layout& layout, const Placement& placement, int rank) {
  const std::map<int, double>& slow = placement.cluster().slow.nodes;
  if (slow.empty()) return 1;
  double share = 1;
  const auto meet = [&](const mesh::View& view) {
    for (const int other : layout.mesh.group(rank, view)) share = std::min(share, share_of(slow, placement.node_of(other)));
  };
  meet(mesh::Axis::kCp | mesh::Axis::kTp);
  if (layout.model.has_experts()) meet(layout.expert_ranks());
  return share;
}

Speeds speeds_of(const program::Layout& layout, const Placement& placement, int pipeline) {
  Speeds speeds;
  for (int rank = pipeline; rank < layout.mesh.world_size(); rank += layout.pipelines()) {
    speeds.devices.push_back(speed_of(layout, placement, rank));
    speeds.nics.push_back(share_of(placement.cluster().slow.nics, placement.node_of(rank)));
  }
  return speeds;
}

// Pipelines that may differ: the first, and those with ranks on nodes that are slow.
std::vector<std::pair<int, Speeds>> different_pipelines(const program::Layout& layout, const Placement& placement) {
  const Cluster& cluster = placement.cluster();
  std::set<int> pipelines = {0};
  for (const std::map<int, double>* slow : {&cluster.slow.nodes, &cluster.slow.nics})
    for (const auto& [node, share] : *slow)
      for (int i = 0; i < cluster.devices_per_node && node < cluster.nodes; ++i)
        if (const int rank = placement.rank_of(node * cluster.devices_per_node + i); rank >= 0) pipelines.insert(rank % layout.pipelines());
  std::vector<std::pair<int, Speeds>> different;
  std::set<Speeds> known;
  for (const int pipeline : pipelines)
    if (Speeds speeds = speeds_of(layout, placement, pipeline); known.insert(speeds).second) different.emplace_back(pipeline, std::move(speeds));
  return different;
}

// Of ranks that share cores. Those of one stage compute at the same time, each as fast as the cores let all of them; so many stages do at once.
struct Turns {
  double speed = 1;
  int stages = 0;  // 0: all
};

Turns turns_of(const program::Layout& layout, const Cluster& cluster) {
  const double devices = cluster.devices_per_node, of_stage = layout.pipelines();
  const double speed = std::min(cluster.device.alone, devices / of_stage);
  if (cluster.nodes > 1 || speed <= 1) return {};
  return {.speed = speed, .stages = std::max(1, static_cast<int>(devices / (of_stage * speed) + 1e-9))};
}

// How much of a term is usually not known, as a share of it: the residuals of closed forms on published runs, by kind.
struct Doubt {
  BreakdownTerm term;
  double share;
  const char* text;
};
constexpr std::array<Doubt, 9> kDoubts = {{{&Breakdown::attention, 0.10, "attention kernels"},
                                           {&Breakdown::pointwise, 0.15, "memory bandwidth of pointwise work"},
                                           {&Breakdown::host, 0.30, "host and launches"},
                                           {&Breakdown::tensor, 0.30, "tensor parallel overlap"},
                                           {&Breakdown::context, 0.40, "context parallel overlap"},
                                           {&Breakdown::experts, 0.30, "expert parallel exchange"},
                                           {&Breakdown::pipeline, 0.40, "pipeline sends"},
                                           {&Breakdown::data, 0.40, "overlap of gradients and parameters"},
                                           {&Breakdown::bubble, 0.10, "balance of stages"}}};

constexpr double kProduction = 0.15;  // MT-NLG, GLM-130B, MegaScale's baselines, Llama 3: 9 to 25 % slower than benchmarks of the same software

class Estimator {
 public:
  Estimator(const program::Layout& layout, const Cluster& cluster, const Stack& stack, const EstimateOptions& options)
      : layout_(layout), stack_(stack), options_(options), placement_(cluster, layout.mesh, options.order),
        steps_(program::judged_steps(layout, options.spans ? kDrawnStep : program::kLongStep)) {}

  StepEstimate estimate() {
    walk_slowest();
    add_straggling();
    add_flops();
    add_band();
    if (options_.traffic) result_.traffic = traffic_of(steps_, placement_);
    if (options_.memory) add_memory();
    return std::move(result_);
  }

 private:
  const Cluster& cluster() const { return placement_.cluster(); }

  // A synchronous step takes as long as that of its slowest pipeline.
  void walk_slowest() {
    for (const auto& [pipeline, speeds] : different_pipelines(layout_, placement_)) {
      std::vector<StepWalk> walks;
      for (const program::MadeStep& step : steps_.made) walks.push_back(walk(step, pipeline, speeds));
      const double seconds = over_steps(walks, [](const StepWalk& walk) { return walk.seconds; });
      if (seconds > result_.seconds) take(seconds, walks);
    }
  }

  StepWalk walk(const program::MadeStep& step, int pipeline, const Speeds& speeds) const {
    std::deque<ActionSeconds> ranks;
    const Turns turns = turns_of(layout_, cluster());
    for (size_t stage = 0; stage < speeds.devices.size(); ++stage)
      ranks.emplace_back(step.layout, step.program, placement_, stack_, options_, pipeline + static_cast<int>(stage) * layout_.pipelines(),
                         turns.speed * speeds.devices[stage]);
    const TimeOfAction time_of = [&](int stage, const program::Action& action) { return ranks[static_cast<size_t>(stage)].of(action); };
    return walk_step(step.layout, step.program, time_of, {.pipeline = pipeline, .computing = turns.stages, .boxes = options_.spans});
  }

  template <typename Of>
  double over_steps(const std::vector<StepWalk>& walks, const Of& of) const {
    return steps_.sum_of_step([&](const program::MadeStep& step) { return of(walks[static_cast<size_t>(&step - steps_.made.data())]); });
  }

  void take(double seconds, std::vector<StepWalk>& walks) {
    result_.seconds = seconds;
    stages_.clear();
    for (size_t stage = 0; stage < walks.back().ranks.size(); ++stage) {
      RankWalk& rank = stages_.emplace_back();
      for (const BreakdownTerm term : kBreakdownTerms)
        rank.spent.*term = over_steps(walks, [&](const StepWalk& walk) { return walk.ranks[stage].spent.*term; });
      rank.busy = busy(rank.spent);
    }
    const auto waits_least = [](const RankWalk& a, const RankWalk& b) {
      return a.spent.bubble + a.spent.pipeline > b.spent.bubble + b.spent.pipeline;
    };
    result_.breakdown = std::ranges::max_element(stages_, waits_least)->spent;
    result_.boxes = std::move(walks.back().boxes);
  }

  // The slowest of many nodes is slower than one; hosts and clocks make the difference. Cores of a host wait for each other in every step.
  void add_straggling() {
    const int nodes = (layout_.mesh.world_size() + cluster().devices_per_node - 1) / cluster().devices_per_node;
    const double doublings = std::log2(std::max(1, nodes)) + (cluster().device.generation == Generation::kCpu ? 1 : 0);
    const double more = stack_.straggle * doublings * result_.seconds;
    result_.seconds += more;
    result_.breakdown.host += more;
    result_.bubble_share = result_.seconds > 0 ? result_.breakdown.bubble / result_.seconds : 0;
  }

  void add_flops() {
    const arch::ModelFlops flops(layout_.model);
    result_.tokens = static_cast<double>(layout_.global_batch) * static_cast<double>(layout_.seq_len);
    result_.model_flops_causal = flops.per_token(layout_.seq_len) * result_.tokens;
    // Of a causal document twice as long a token sees as many keys on average as of this one without a mask.
    result_.model_flops_noncausal = flops.per_token(2 * layout_.seq_len) * result_.tokens;
    const DeviceKind& device = cluster().device;
    const double peak = device.flops_bf16 > 0 ? device.flops_bf16 : device.flops_fp32;
    const double most = peak * layout_.mesh.world_size() * result_.seconds;
    if (most <= 0) return;
    result_.mfu_causal = result_.model_flops_causal / most;
    result_.mfu_noncausal = result_.model_flops_noncausal / most;
  }

  // What is always there, and what is not known of each term, as errors that do not depend on each other.
  void add_band() {
    const bool experts = layout_.model.has_experts(), fp8 = options_.linears == Linears::kFp8;
    const double always = experts ? stack_.expert_band : fp8 ? std::max(stack_.fp8_band, stack_.band) : stack_.band;
    double squares = always * always, most = 0;
    result_.widest = experts ? "software of layers with experts" : fp8 ? "rates of matrix products in FP8" : "rates of matrix products";
    for (const Doubt& doubt : kDoubts) {
      const double share = doubt.share * result_.breakdown.*doubt.term / result_.seconds;
      squares += share * share;
      if (share > most && share > always / 2) result_.widest = doubt.text;
      most = std::max(most, share);
    }
    const double half = std::min(0.5, std::sqrt(squares));
    // Runs that are no benchmark are slower than those that constants come from, never faster; a machine of one's own is measured.
    const double slower = cluster().device.generation == Generation::kCpu ? 0 : kProduction;
    result_.low = result_.seconds * (1 - half);
    result_.high = result_.seconds * (1 + std::min(0.5, std::sqrt(squares + slower * slower)));
  }

  void add_memory() {
    StageMemory memory = stage_memory(layout_, steps_, cluster(), stack_, options_);
    result_.fits = fits(memory, cluster());
    result_.stages = std::move(memory.stages);
    for (size_t i = 0; i < result_.stages.size(); ++i) result_.stages[i].busy = stages_[i].busy;
    result_.worst_stage = std::ranges::max_element(result_.stages, {}, &StageEstimate::reserved)->stage;
  }

  const program::Layout& layout_;
  const Stack& stack_;
  const EstimateOptions& options_;
  const Placement placement_;
  const program::JudgedSteps steps_;
  StepEstimate result_;
  std::vector<RankWalk> stages_;
};

}  // namespace

StepEstimate estimate_step(const program::Layout& layout, const Cluster& cluster, const Stack& stack, const EstimateOptions& options) {
  LOCKSTEP_CHECK(layout.mesh.world_size() <= cluster.devices(), "a layout of ", layout.mesh.world_size(), " ranks on ", cluster.devices(), " devices");
  return Estimator(layout, cluster, stack, options).estimate();
}

}  // namespace lockstep::plan
