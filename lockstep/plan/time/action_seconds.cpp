#include "lockstep/plan/time/action_seconds.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {

using program::Access;
using program::Action;
using program::ActionKind;
using program::PlannedCall;
using program::Resource;
using program::Touch;
using program::Work;

namespace {

constexpr double kGradientBytes = 8;  // of a number of 4: one stream of reads has about half of the rate of the update's seven streams

bool offloads(const program::Layout& layout) { return layout.offload.optimizer || layout.offload.parameters || layout.offload.activations; }

bool takes_whole_matrices(const std::vector<arch::ParamSpec>& table) {
  return std::ranges::any_of(table, [](const arch::ParamSpec& spec) { return spec.update.optimizer->whole_matrix; });
}

// Stages of a pipeline in which the group has ranks.
int stages_of(const program::Layout& layout, const program::GroupRef& group) {
  if (group.is_pair()) return 2;
  return group.view.axes.contains(mesh::Axis::kPp) ? layout.pipeline.ranks : 1;
}

}  // namespace

void add_layer(const LayerSeconds::Part& part, Breakdown& work) {
  work.products += part.products;
  work.attention += part.attention;
  work.pointwise += part.pointwise;
  work.tensor += part.tensor;
  work.context += part.context;
  work.experts += part.experts;
}

ActionSeconds::ActionSeconds(const program::Layout& layout, const program::Program& program, const Placement& placement, const Stack& stack,
                             const EstimateOptions& options, int rank, double speed)
    : layout_(layout), cluster_(placement.cluster()), stack_(stack), rank_(rank), layers_(layout, placement, stack, options, rank, speed),
      calls_(layout, program, rank), effects_(layout, program.buckets, rank) {
  std::vector<arch::ParamSpec> table = layout.param_table(rank);
  flat_ = layout.flat_layout(table);
  if (takes_whole_matrices(table)) {
    table_ = std::move(table);
    matrices_.emplace(layout, rank);
  }
  if (offloads(layout)) moves_.emplace(layout, program, rank);
}
ActionSeconds::~ActionSeconds() = default;

ActionTime ActionSeconds::of(const Action& action) {
  ActionTime time;
  if (program::computes(action.kind)) {
    add_work(action, time);
  } else if (program::exchanges(action.kind)) {
    time.network = layers_.exchange(action);
    time.over_nics = layers_.calls().over_nics(program::group_over(layout_, layout_.expert_ranks(), program::Channel::kExperts));
    time.exposed = stack_.data_exposed;
    time.term = &Breakdown::experts;
  } else {
    add_calls(action, time);
    add_update(action, time);
  }
  if (moves_) add_moves(action, time);
  time.seconds = time.work.sum();
  return time;
}

void ActionSeconds::add_work(const Action& action, ActionTime& time) {
  LayerSeconds::Part part = layers_.of(action);
  time.work.host = host_of(action, part);
  if (program::work_of(action.kind) == Work::kAgain) {
    time.work.recompute = part.products + part.attention + part.pointwise;
    part.products = part.attention = part.pointwise = 0;
  }
  add_layer(part, time.work);
}

double ActionSeconds::host_of(const Action& action, const LayerSeconds::Part& part) const {
  const double kernels = part.products + part.attention + part.pointwise, share = stack_.host_share * kernels;
  if (stack_.expert_host <= 0 || !layout_.is_expert_block(action.layer)) return share;
  const Work work = program::work_of(action.kind);
  if (work == Work::kAgain && layout_.recompute_of(action.layer) != arch::Recompute::kFull) return share;
  const double least = stack_.expert_host * (work == Work::kInputAndWeight ? 2 : 1) / (action.part < 0 ? 1 : program::kParts);
  return std::max(share, least - part.sum());
}

void ActionSeconds::add_call(const PlannedCall& call, bool by_tensor, ActionTime& time) {
  time.network += by_tensor ? layers_.calls().of_tensors(call) : layers_.calls().of(call);
  time.over_nics = time.over_nics || layers_.calls().over_nics(call.group);
  time.stages = std::max(time.stages, stages_of(layout_, call.group));
}

void ActionSeconds::add_calls(const Action& action, ActionTime& time) {
  const program::Transfer transfer = program::is_transfer(action.kind) ? program::transfer_of(action) : program::Transfer{};
  if (program::is_transfer(action.kind) && !transfer.sends) return;
  const bool travels = program::gathers(action.kind) || program::reduces(action.kind);
  const bool comes_and_goes = travels && (layout_.sharded_parameters() || layout_.transient_gradients());
  for (const PlannedCall& call : layers_.calls().together(calls_.of(action))) add_call(call, comes_and_goes, time);
  if (transfer.sends) {
    time.exposed = stack_.send_exposed;
    time.term = &Breakdown::pipeline;
    time.stages = 1;
    return;
  }
  time.exposed = comes_and_goes ? stack_.shard_exposed : stack_.data_exposed;
  time.mutual = comes_and_goes;
}

// STEP, and owners of matrices that lie scattered.
void ActionSeconds::add_update(const Action& action, ActionTime& time) {
  const program::Effects& effects = effects_.of(action);
  double parameters = 0;
  if (action.kind == ActionKind::kStep) {
    parameters = static_cast<double>(action.unit < 0 ? flat_.parts : flat_.units[flat_.index_of(action.unit)].part());
  } else if (action.kind == ActionKind::kNorm) {
    // On GPUs optimizer_bytes have this pass over the gradients.
    if (cluster_.device.generation == Generation::kCpu) time.work.optimizer = layers_.kernels().products().memory(kGradientBytes * static_cast<double>(flat_.parts));
    return;
  } else if (!std::ranges::any_of(effects.touches, [](const Touch& touch) { return touch.what == Resource::kDirections && touch.how == Access::kUpdate; })) {
    return;
  }
  const double flops = update_flops(action);
  if (layout_.offload.optimizer) {
    time.work.optimizer = stack_.optimizer_bytes * parameters / (kHostBandwidth / cluster_.devices_per_node);
    parameters = 0;
  }
  time.work.optimizer += layers_.kernels().update(parameters, flops);
}

// Of the matrices that this rank has whole, or of a scattered unit of its dearest owner.
double ActionSeconds::update_flops(const Action& action) {
  if (!matrices_) return 0;
  double flops = 0;
  if (action.kind == ActionKind::kStep) {
    for (const arch::ParamSpec& spec : table_)
      if ((action.unit < 0 || spec.unit == action.unit) && spec.update.optimizer->whole_matrix && !arch::is_scattered_matrix(spec, layout_.shards(spec.group)))
        flops += layout_.optimizer.ns_steps * arch::iteration_flops(spec.shape[0], spec.shape[1]);
    return flops;
  }
  std::map<int, double> owned;
  for (const program::ScatteredMatrix& matrix : matrices_->of(action.unit))
    flops = std::max(flops, owned[matrix.owner] += matrix.flops(layout_.optimizer.ns_steps));
  return flops;
}

void ActionSeconds::add_moves(const Action& action, ActionTime& time) {
  for (const program::Move& move : moves_->of(action)) {
    const bool disk = move.route == program::Route::kDiskToHost || move.route == program::Route::kHostToDisk;
    const DeviceKind& device = cluster_.device;
    const double rate = disk ? cluster_.disk_bandwidth / cluster_.devices_per_node : device.pcie > 0 ? device.pcie : device.memory_bandwidth;
    if (rate <= 0)
      throw ConfigError({.code = "LS1148",
                         .what = cat("the layout moves ", move.what, " ", program::route_name(move.route), ", and the cluster has no ", disk ? "disk_bandwidth" : "pcie"),
                         .way_out = "say it in the cluster file, or keep these states elsewhere"});
    const double seconds = static_cast<double>(move.bytes) / rate;
    if (effects_.of(action).lane == program::Lane::kCopies) {
      time.copies += seconds;
      time.term = &Breakdown::host;
    } else {
      time.work.host += seconds;
    }
  }
}

}  // namespace lockstep::plan
