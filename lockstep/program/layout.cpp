#include "lockstep/program/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/check.h"
#include "lockstep/config/fields.h"

namespace lockstep::program {
namespace {

// Beside the tokens.
mesh::AxisSet more_axes(const Layout& layout, arch::ParameterGroup group) {
  return layout.sums_over_tensor(group) ? mesh::AxisSet(mesh::Axis::kTp) : mesh::AxisSet{};
}

// Context parallel ranks share out states too, and stand closest (cp varies faster than dp_shard); of rows those of tp, closer still.
mesh::AxisSet shard_axes(const Layout& layout, arch::ParameterGroup group) {
  if (layout.zero == 0) return {};
  const mesh::AxisSet shard = mesh::Axis::kDpShard | mesh::Axis::kCp;
  return layout.mesh.degree(shard) > 1 ? shard | more_axes(layout, group) : shard;
}

// Experts lie over other axes than all else.
bool folds_experts(const Layout& layout) { return layout.ep != 1 || layout.etp != layout.mesh.degree(mesh::Axis::kTp); }

Domain expert_domain(const Layout& layout) {
  const mesh::Fold fold = mesh::expert_fold(layout.expert_degrees());
  const mesh::View replicate{fold, mesh::Axis::kEdpReplicate}, shard{fold, mesh::Axis::kEdpShard};
  const mesh::View sum{fold, mesh::Axis::kEdpReplicate | mesh::Axis::kEdpShard};
  if (layout.zero == 0) return {.sum = sum, .shard = {}, .copies = sum};
  return {.sum = sum, .shard = shard, .copies = replicate};
}

// ", recompute full"; nothing where every block keeps all.
std::string recompute_text(const std::vector<arch::Recompute>& blocks) {
  const auto all = [&](arch::Recompute choice) { return std::ranges::count(blocks, choice) == std::ssize(blocks); };
  if (all(arch::Recompute::kNone)) return "";
  return all(arch::Recompute::kSelective) ? ", recompute selective"
         : all(arch::Recompute::kFull)    ? ", recompute full"
                                          : ", recompute by block";
}

// "cp 4 (2d 2 x 2, zigzag)"; where these ranks alone have other tokens, also what they share out and how they sum.
std::string context_text(const Layout& layout) {
  const arch::ContextShard shard = layout.context_shard();
  const bool alone = layout.mesh.degree(layout.samples()) == 1;
  const bool nested = shard.kind == config::ContextKind::k2d;
  return cat("cp ", shard.ranks, " (", config::name_of(shard.kind), nested ? cat(" ", shard.inner, " x ", shard.ranks / shard.inner) : "", ", ",
             config::name_of(shard.split), alone && layout.zero > 0 ? cat(", zero ", layout.zero) : "",
             alone && layout.server_mode() ? ", parameter server" : "", ")");
}

}  // namespace

mesh::ExpertDegrees Layout::expert_degrees() const {
  const int ranks = pipelines(), here = ep * etp;
  LOCKSTEP_CHECK(ep >= 1 && etp >= 1 && ranks % here == 0, "ep ", ep, " x etp ", etp, " over the ", ranks, " ranks of a stage");
  const int edp = ranks / here, replicate = std::gcd(mesh.degree(mesh::Axis::kDpReplicate), edp);
  return {.edp_replicate = replicate, .edp_shard = edp / replicate, .ep = ep, .etp = etp};
}

mesh::View Layout::expert_ranks() const { return {mesh::expert_fold(expert_degrees()), mesh::Axis::kEp | mesh::Axis::kEtp}; }

mesh::View Layout::expert_nodes() const { return {mesh::expert_node_fold(expert_degrees(), node_ranks), mesh::Axis::kEpNodes}; }
mesh::View Layout::expert_node() const { return {mesh::expert_node_fold(expert_degrees(), node_ranks), mesh::Axis::kEpNode}; }

mesh::View Layout::context_inner_ranks() const {
  return {mesh::context_fold(mesh.degree(mesh::Axis::kCp), context_inner), mesh::Axis::kCpInner};
}
mesh::View Layout::context_outer_ranks() const {
  return {mesh::context_fold(mesh.degree(mesh::Axis::kCp), context_inner), mesh::Axis::kCpOuter};
}

bool Layout::sums_over_tensor(arch::ParameterGroup group) const {
  if (group == arch::ParameterGroup::kRows) return true;
  return group == arch::ParameterGroup::kFp32 && row_groups && !server_mode() && mesh.degree(mesh::Axis::kTp) > 1;
}

Domain Layout::domain(arch::ParameterGroup group) const {
  if (group == arch::ParameterGroup::kExperts) {
    if (folds_experts(*this)) return expert_domain(*this);
    group = arch::ParameterGroup::kDense;
  }
  const mesh::AxisSet sum = tokens() | more_axes(*this, group), shard = shard_axes(*this, group);
  return {.sum = sum, .shard = shard, .copies = sum.without(shard), .owner = server_mode() ? kServerRank : -1};
}

int64_t Layout::num_microbatches() const {
  const int64_t per_pass = micro_batch * mesh.degree(samples());
  LOCKSTEP_CHECK_EQ(global_batch % per_pass, 0, "global batch ", global_batch, ", one pass over all ranks ", per_pass);
  return global_batch / per_pass;
}

arch::TensorShard Layout::tensor_shard(int rank) const {
  arch::TensorShard shard{.size = mesh.degree(mesh::Axis::kTp),
                          .rank = mesh.coordinates(rank)[mesh::Axis::kTp],
                          .sequence_parallel = sequence_parallel,
                          .row_groups = row_groups && !server_mode(),
                          .fp32_group = has_fp32_group()};
  if (!model.has_experts()) return shard;
  const mesh::Fold fold = mesh::expert_fold(expert_degrees());
  shard.experts.ep = ep;
  shard.experts.ep_rank = mesh.group_rank(rank, {fold, mesh::Axis::kEp});
  shard.experts.etp = etp;
  shard.experts.etp_rank = mesh.group_rank(rank, {fold, mesh::Axis::kEtp});
  return shard;
}

arch::CostInput Layout::cost_input(int rank, arch::Recompute choice) const {
  arch::CostInput input{.batch = micro_batch,
                        .seq_len = seq_len,
                        .element_size = element_size(),
                        .threads = threads,
                        .tensor = tensor_shard(rank),
                        .recompute = choice,
                        .overlap = overlap};
  input.context = context_shard();
  input.places = has_places();
  input.moe = moe;
  input.dispatcher = dispatcher;
  input.node_ranks = node_ranks;
  return input;
}

std::vector<arch::ParamSpec> Layout::param_table(int rank) const {
  std::vector<arch::ParamSpec> table;
  if (pipeline.ranks == 1) {
    table = arch::param_table(model, tensor_shard(rank));
  } else {
    std::vector<int> units = layers_of(rank);
    if (model.tied && holds(rank, num_layers() - 1) && !holds(rank, 0)) units.insert(units.begin(), 0);
    table = arch::param_table(model, tensor_shard(rank), units);
  }
  arch::choose_optimizers(optimizer, table);
  return table;
}

Layout::Stretch Layout::stage_layers(int stage) const {
  if (pipeline.first_layer.empty()) return {0, num_layers()};
  return {pipeline.first_layer.at(static_cast<size_t>(stage)), pipeline.first_layer.at(static_cast<size_t>(stage) + 1)};
}

std::vector<int> Layout::layers_of(int rank) const {
  std::vector<int> layers;
  for (const int stage : pipeline.stages_of(pipeline_rank(rank)))
    for (int layer = stage_layers(stage).begin; layer < stage_layers(stage).end; ++layer) layers.push_back(layer);
  return layers;
}

// Embedding and head, the first and the last layer.
int Layout::tied_peer(int rank) const {
  const int last = num_layers() - 1;
  if (!model.tied || holds(rank, 0) == holds(rank, last)) return -1;
  return rank_at(rank, holds(rank, 0) ? pipeline.stages() - 1 : 0);
}

int Layout::shards(arch::ParameterGroup group) const { return mesh.degree(domain(group).shard); }

int Layout::shard(int rank, arch::ParameterGroup group) const { return mesh.group_rank(rank, domain(group).shard); }

bool Layout::shares_states() const {
  return shards() > 1 || (model.has_experts() && shards(arch::ParameterGroup::kExperts) > 1);
}

arch::FlatLayout Layout::flat_layout(const std::vector<arch::ParamSpec>& table) const {
  const int experts = model.has_experts() ? shards(arch::ParameterGroup::kExperts) : 1;
  return arch::flat_layout(table, {shards(), shards(arch::ParameterGroup::kRows), experts, shards(arch::ParameterGroup::kFp32)});
}

arch::Recompute Layout::recompute_of(int layer) const {
  const bool block = layer >= 1 && layer <= static_cast<int>(recompute.size());
  return block ? recompute[static_cast<size_t>(layer) - 1] : arch::Recompute::kNone;
}

bool Layout::owns_optimizer(int rank) const {
  const Domain domain = dense_domain();
  return domain.owner < 0 || mesh.group_rank(rank, domain.copies) == domain.owner;
}

// Experts that lie over tp otherwise than all else are no part of a model group that ends at a replica.
bool Layout::norm_over_all_ranks() const {
  return shares_states() || (!server_mode() && model.has_experts() && (ep * etp > 1 || mesh.degree(mesh::Axis::kTp) > 1));
}

bool Layout::counts_in_norm(int rank, arch::ParameterGroup group) const {
  const mesh::View copies = domain(group).copies;
  return mesh.group_rank(rank, norm_over_all_ranks() ? copies : mesh::View(copies.axes & model_group())) == 0;
}

bool Layout::is_expert_block(int layer) const {
  return arch::is_expert_block(model, layer);
}

int64_t Layout::load_numbers() const { return model.has_experts() ? load_offset(num_layers()) : 0; }

int64_t Layout::load_offset(int layer) const {
  int64_t blocks = 0;
  for (int below = 1; below < layer; ++below) blocks += is_expert_block(below) ? 1 : 0;
  return blocks * (model.experts.count + arch::load_extras(moe));
}

std::vector<arch::LayerCost> layer_costs(const Layout& layout, int rank) {
  std::map<std::pair<int, arch::Recompute>, arch::LayerCost> known;  // layers of one pattern that recompute alike cost the same
  std::vector<arch::LayerCost> costs;
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
    const arch::Recompute recompute = layout.recompute_of(static_cast<int>(costs.size()));
    const auto [cost, fresh] = known.try_emplace({arch::layer_pattern(layout.model, layer), recompute});
    if (fresh) cost->second = arch::layer_cost(layout.model, layer, layout.cost_input(rank, recompute));
    costs.push_back(cost->second);
  }
  return costs;
}

Layout reference_layout(const Layout& layout) {
  Layout reference = layout;
  reference.mesh = mesh::Mesh();
  reference.pipeline = {};
  reference.zero = 0;
  reference.recompute.clear();
  reference.offload = {};
  reference.device_limit = 0;
  reference.data_parallel = config::DataParallel::kRing;
  reference.ep = reference.etp = 1;
  reference.dispatcher = config::Dispatcher::kAllToAll;
  reference.node_ranks = 1;
  reference.context = config::ContextKind::kRing;
  reference.context_inner = 1;
  reference.context_split = config::ContextSplit::kZigzag;
  return reference;
}

std::string describe(const Layout& layout) {
  const auto several = [](int64_t count, const char* what, const char* plural) {
    return cat(count, " ", count == 1 ? what : plural);
  };
  const int data = layout.mesh.degree(layout.samples());
  const int tensor = layout.mesh.degree(mesh::Axis::kTp);
  const char* kind = layout.data_parallel == config::DataParallel::kRing ? "ring" : "parameter server";
  std::vector<std::string> axes;
  if (const Pipeline& pipeline = layout.pipeline; pipeline.ranks > 1)
    axes.push_back(cat("pp ", pipeline.ranks, " (", schedule_name(pipeline.kind),
                       pipeline.virtual_stages > 1 ? cat(", ", pipeline.virtual_stages, " stages a rank") : "", ")"));
  const int shard = layout.mesh.degree(mesh::Axis::kDpShard), replicate = layout.mesh.degree(mesh::Axis::kDpReplicate);
  if (shard > 1 && replicate > 1)
    axes.push_back(cat("dp_replicate ", replicate, " x dp_shard ", shard, " (zero ", layout.zero, ")"));
  else if (shard > 1)
    axes.push_back(cat("dp ", shard, " (zero ", layout.zero, ")"));
  else if (data > 1)
    axes.push_back(cat("dp ", data, " (", kind, ")"));
  if (layout.mesh.degree(mesh::Axis::kCp) > 1) axes.push_back(context_text(layout));
  if (tensor > 1) axes.push_back(cat("tp ", tensor, layout.sequence_parallel ? " (sequence parallel)" : ""));
  std::vector<std::string> experts;
  if (layout.ep > 1) experts.push_back(cat("ep ", layout.ep));
  if (layout.etp > 1) experts.push_back(cat("etp ", layout.etp));
  const char* dispatched = layout.dispatcher == config::Dispatcher::kAllGather ? " (all_gather)" : "";
  const std::string nodes = layout.dispatches_by_node() ? cat(" (hierarchical, nodes of ", layout.node_ranks, ")") : dispatched;
  return cat(axes.empty() ? "1 rank" : join(axes, " x "), ", ", experts.empty() ? "" : "experts over " + join(experts, " x ") + nodes + (layout.overlap_experts ? " in turns, " : ", "),
             several(layout.num_microbatches(), "microbatch", "microbatches"), " x ",
             several(layout.micro_batch, "sequence", "sequences"), " x ", several(layout.seq_len, "token", "tokens"),
             ", ", layout.precision == config::Precision::kBf16 ? "bf16" : "fp32", recompute_text(layout.recompute));
}

mesh::Range microbatch_samples(const Layout& layout, int rank, int64_t microbatch) {
  const int64_t count = layout.num_microbatches();
  LOCKSTEP_CHECK(microbatch >= 0 && microbatch < count, "microbatch ", microbatch, " of ", count);
  const int64_t index = layout.mesh.group_rank(rank, layout.samples()) * count + microbatch;
  return {index * layout.micro_batch, (index + 1) * layout.micro_batch};
}

}  // namespace lockstep::program
