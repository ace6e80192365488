#include "lockstep/plan/search/layer_pieces.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/plan/cluster/group_rates.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/time/stage_memory.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using arch::Recompute;
using mesh::Axis;

constexpr std::array kChoices = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr double kSameShare = 1e-3;  // of FLOPs: halves of odd numbers of keys, and what fills parts up, move no border of a stage

mesh::Mesh mesh_of(const Candidate& candidate) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kTp] = candidate.tp;
  degrees[Axis::kCp] = candidate.cp;
  degrees[Axis::kPp] = candidate.pp;
  degrees[Axis::kDpShard] = candidate.dp_shard();
  degrees[Axis::kDpReplicate] = candidate.dp / candidate.dp_shard();
  return mesh::Mesh(degrees);
}

// Token ids and targets of a sequence, and where it has places what program::memory_timeline counts of them.
double bytes_of_sequence(const program::Layout& layout) {
  constexpr double kTokenId = 8, kPlace = 4;
  const auto tokens = static_cast<double>(layout.tokens_here());
  if (!layout.has_places()) return 2 * tokens * kTokenId;
  const double ranks = layout.context_shard().ranks;
  return tokens * (3 * kTokenId + 2 * kPlace) + (ranks > 1 ? kPlace * (ranks * tokens + static_cast<double>(layout.seq_len)) : 0);
}

// As program::make_layout has it where it balances stages.
arch::CostInput input_of_balance(const program::Layout& layout) {
  arch::CostInput input{.batch = layout.micro_batch, .seq_len = layout.seq_len};
  input.tensor.size = layout.mesh.degree(Axis::kTp);
  input.tensor.experts.ep = layout.ep;
  input.tensor.experts.etp = layout.etp;
  input.moe = layout.moe;
  input.dispatcher = layout.dispatcher;
  input.node_ranks = layout.node_ranks;
  input.context = layout.context_shard();
  input.context.documents = false;
  return input;
}

// They stand side by side.
void add_shared(const std::vector<arch::ParamSpec>& table, const arch::FlatUnit& unit, UnitSize& size) {
  for (const arch::FlatSlot& slot : unit.slots) {
    const arch::ParamSpec& spec = table[static_cast<size_t>(slot.param)];
    if (!spec.partial || spec.cut == arch::TensorCut::kNone) continue;
    if (size.shared == 0) size.shared_begin = static_cast<double>(slot.offset);
    size.shared += static_cast<double>(slot.numel);
  }
}

LayerBytes bytes_of(const arch::LayerCost& cost) {
  const auto number = [](int64_t bytes) { return static_cast<double>(bytes); };
  return {.kept = number(cost.kept), .restored = number(cost.restored), .held = number(cost.held), .output = number(cost.output),
          .forward = number(cost.forward_workspace), .recompute = number(cost.recompute_workspace), .backward = number(cost.backward_workspace),
          .input = number(cost.input_workspace), .weight = number(cost.weight_workspace)};
}

}  // namespace

Places::Places(const arch::ModelConfig& model) {
  std::vector<int> patterns;
  for (const arch::LayerSpec& layer : arch::layer_table(model)) {
    const int pattern = arch::layer_pattern(model, layer);
    auto found = std::ranges::find(patterns, pattern);
    if (found == patterns.end()) {
      found = patterns.insert(found, pattern);
      first_.push_back(layer.index);
      times_.push_back(0);
    }
    of_layer_.push_back(static_cast<int>(found - patterns.begin()));
    ++times_[static_cast<size_t>(of_layer_.back())];
  }
}

LayerPieces::LayerPieces(const Job& job, const EstimateOptions& options, const Candidate& legal)
    : job_(job),
      options_(options),
      places_(job.model),
      layout_(program::make_layout(with_candidate(job.config, legal), job.model, static_cast<int>(ranks_of(legal)))) {
  layout_.pipeline = {};
}

const program::Layout& LayerPieces::layout(const Candidate& candidate) {
  const config::RunConfig config = with_candidate(job_.config, candidate);
  layout_.mesh = mesh_of(candidate);
  layout_.pipeline.ranks = candidate.pp;
  layout_.micro_batch = candidate.micro_batch;
  layout_.global_batch = int64_t{candidate.micro_batch} * candidate.dp;
  layout_.zero = candidate.zero;
  layout_.ep = candidate.ep;
  layout_.etp = candidate.etp;
  layout_.sequence_parallel = candidate.sequence_parallel;
  layout_.recompute.assign(static_cast<size_t>(job_.model.layers), candidate.recompute);
  layout_.offload.optimizer = candidate.offload_optimizer;
  layout_.reduce_precision = config.parallel.reduce_precision;
  layout_.moe = config.moe;
  layout_.dispatcher = config.parallel.dispatcher;
  layout_.node_ranks = std::max(1, config.parallel.ranks_per_node);
  layout_.overlap_experts = config.parallel.overlap_experts;
  return layout_;
}

// As few ranks as stand for all: groups inside a stage are neighbours, and whole nodes of them repeat.
Candidate LayerPieces::of_layers(const Candidate& candidate) const {
  Candidate one = candidate;
  one.zero = 0;
  one.dp_replicate = 1;
  one.offload_optimizer = false;
  one.schedule = config::ScheduleKind::kOneFOneB;
  one.virtual_stages = 1;
  const bool pipelined = options_.order == Order::kPipelined && candidate.ep * candidate.etp > 1;
  if (!pipelined) one.pp = 1;
  const int64_t inner = int64_t{candidate.tp} * candidate.cp, unit = devices_of_unit(job_.cluster);
  const int64_t least = std::lcm(inner, int64_t{candidate.ep} * candidate.etp);
  const int64_t whole = std::lcm(least, unit);
  const int64_t ranks = std::min(ranks_of_stage(candidate), std::max(least, whole));
  one.dp = static_cast<int>(ranks / inner);
  return one;
}

LayerSet& LayerPieces::set_of(const Candidate& candidate) {
  const Candidate one = of_layers(candidate);
  const LookupKey key = {one.tp, one.cp, one.ep, one.etp, one.micro_batch, one.dp, one.pp, one.sequence_parallel ? 1 : 0};
  return sets_.of(key, [&] {
    LayerSet set;
    set.times.resize(static_cast<size_t>(places_.count()));
    set.least.resize(static_cast<size_t>(places_.count()));
    set.certain.resize(static_cast<size_t>(places_.count()));
    return set;
  });
}

LayerSet& LayerPieces::timed(const Candidate& candidate) {
  LayerSet& set = set_of(candidate);
  if (!set.timed) add_times(candidate, set);
  return set;
}

LayerSet& LayerPieces::with_bytes(const Candidate& candidate) {
  LayerSet& set = set_of(candidate);
  if (set.bytes.empty()) add_bytes(candidate, set);
  return set;
}

void LayerPieces::forget_times() {
  sets_.for_each([](LayerSet& set) { set.timed = false; });
}

void LayerPieces::add_times(const Candidate& candidate, LayerSet& set) {
  Candidate together = candidate;  // all experts on each rank: the other layers are the same
  together.ep = together.etp = 1;
  const LayerSet* same = candidate.ep * candidate.etp > 1 ? &timed(together) : nullptr;
  const program::Layout& layout = this->layout(of_layers(candidate));
  const Placement placement(job_.cluster, layout.mesh, options_.order);
  for (int place = 0; place < places_.count(); ++place) {
    const int layer = places_.layer(place);
    std::array<LayerTimes, kRecomputeChoices>& times = set.times[static_cast<size_t>(place)];
    if (same != nullptr && !layout.is_expert_block(layer)) {
      times = same->times[static_cast<size_t>(place)];
      continue;
    }
    const LayerSeconds seconds = job_.times.layer(layout, layer, 0, placement, job_.stack, options_);
    const double least = layout.is_expert_block(layer) ? job_.stack.expert_host : 0;
    const auto with_host = [&](const LayerSeconds::Part& part) {
      return part.sum() + job_.stack.host_share * (part.products + part.attention + part.pointwise);
    };
    double& certain = set.certain[static_cast<size_t>(place)];
    certain = 0;
    for (const LayerSeconds::Part* part : {&seconds.forward, &seconds.input, &seconds.weight}) certain += part->attention + part->tensor + part->context;
    times.fill({.forward = std::max(least, with_host(seconds.forward)), .input = with_host(seconds.input), .weight = with_host(seconds.weight)});
    set.least[static_cast<size_t>(place)] = least;
    if (place == 0 || place == places_.head()) continue;
    times[static_cast<size_t>(Recompute::kSelective)].recompute = with_host(seconds.restore);
    times[static_cast<size_t>(Recompute::kFull)].recompute = std::max(least, with_host(seconds.again));
  }
  set.timed = true;
}

// As stage_memory() of lockstep/plan/time has it: rows that come from other ranks are so many times those of balanced routing, where nothing
// bounds them.
void LayerPieces::bound_rows(program::Layout& layout) const {
  if (has_room_for_all_rows(layout)) layout.moe.imbalance_limit = std::max(1.0, options_.imbalance);
}

void LayerPieces::add_bytes(const Candidate& candidate, LayerSet& set) {
  this->layout(of_layers(candidate));
  const arch::CostInput balanced = input_of_balance(layout_);
  bound_rows(layout_);
  const program::Layout& layout = layout_;
  set.sequence_bytes = static_cast<double>(layout.micro_batch) * bytes_of_sequence(layout);
  for (int place = 0; place < places_.count(); ++place) {
    const arch::LayerSpec layer = arch::layer_spec(job_.model, places_.layer(place));
    std::array<LayerBytes, kRecomputeChoices>& bytes = set.bytes.emplace_back();
    const bool block = layer.kind == arch::LayerKind::kBlock;  // embedding and head are never computed again
    for (const Recompute choice : kChoices) {
      if (!block && choice != Recompute::kNone) {
        bytes[static_cast<size_t>(choice)] = bytes[0];
        continue;
      }
      bytes[static_cast<size_t>(choice)] = bytes_of(arch::layer_cost(job_.model, layer, layout.cost_input(0, choice)));
    }
    const arch::LayerCost flops = arch::layer_cost(job_.model, layer, balanced);
    set.flops.push_back(flops.forward_flops + flops.backward_flops);
  }
  std::vector<double> shares = set.flops;
  for (double& share : shares) share /= set.flops[1];
  const auto same = [&](const std::vector<double>& other) {
    return std::ranges::equal(shares, other, [](double a, double b) { return std::abs(a - b) <= kSameShare * std::max(a, b); });
  };
  const auto known = std::ranges::find_if(profiles_, same);
  set.profile = static_cast<int>(known - profiles_.begin());
  if (known == profiles_.end()) profiles_.push_back(set.flops);
}

const std::vector<UnitSizes>& LayerPieces::units(const Candidate& candidate) {
  const LookupKey key = {candidate.tp, candidate.ep, candidate.etp, candidate.sequence_parallel ? 1 : 0, candidate.zero > 0 ? 1 : 0, candidate.dp_shard() * candidate.cp > 1 ? 1 : 0};
  return units_.of(key, [&] { return units_of(candidate); });
}

std::vector<UnitSizes> LayerPieces::units_of(const Candidate& candidate) {
  const program::Layout& layout = this->layout(candidate);
  std::vector<UnitSizes> sizes;
  for (int place = 0; place < places_.count(); ++place) {
    std::vector<arch::ParamSpec> table = arch::param_table(job_.model, layout.tensor_shard(0), {places_.layer(place)});
    arch::choose_optimizers(layout.optimizer, table);
    UnitSizes& of_place = sizes.emplace_back();
    for (const arch::FlatUnit& unit : arch::flat_layout(table).units) {
      const auto elements = static_cast<double>(unit.numel());
      of_place[static_cast<size_t>(unit.group)] = {.elements = elements,
                                                   .element_size = static_cast<double>(layout.element_size(unit.group)),
                                                   .wire_size = static_cast<double>(config::bytes_of(layout.reduce_precision_of(unit.group))),
                                                   .updated = static_cast<double>(arch::update_bytes(table, unit)) / elements};
      add_shared(table, unit, of_place[static_cast<size_t>(unit.group)]);
    }
  }
  return sizes;
}

}  // namespace lockstep::plan
