// Everything a step program is built from: the model, the mesh and how the batch is cut. Derived once from the run
// configuration; the same for every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/optimizer.h"
#include "lockstep/arch/params.h"
#include "lockstep/config/run_config.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/program/groups.h"
#include "lockstep/program/pipeline.h"

namespace lockstep::program {

// What lives on the host (or, beyond host_limit, on disk) and comes to the device for its use.
struct Offload {
  bool optimizer = false;    // its slots and fp32 values; gradients are summed and the update runs there too
  bool parameters = false;   // each layer's, or with zero 3 this rank's shard of it; only together with `optimizer`
  bool activations = false;  // the layer inputs that full recomputation keeps
  int64_t host_limit = 0;    // bytes of this rank; 0 = none
  bool disk = false;         // there is a place for what goes beyond it
  bool operator==(const Offload&) const = default;
};

inline constexpr int kServerRank = 0;  // the parameter server among the ranks that hold copies (Domain::owner)

struct Layout {
  arch::ModelConfig model;
  mesh::Mesh mesh;
  Pipeline pipeline{};           // ranks = degree of pp
  int64_t global_batch = 1;      // sequences per step
  int64_t micro_batch = 1;       // sequences per microbatch and rank
  int64_t seq_len = 1;
  config::Precision precision = config::Precision::kFp32;
  config::OptimizerSection optimizer{};
  config::DataParallel data_parallel = config::DataParallel::kRing;
  int64_t bucket_bytes = 25 << 20;
  // What the ranks of the axis dp_shard share out (Rajbhandari et al. 2020, ZeRO): 1 optimizer state, 2 also gradients,
  // 3 also parameters.
  int zero = 0;
  int prefetch = 1;                             // layers, zero 3
  int64_t prefetch_limit = int64_t{1} << 30;    // bytes
  bool reshard_after_forward = true;
  bool reshard_after_microbatch = true;
  config::Precision reduce_precision = config::Precision::kFp32;  // of gradients on the wire
  std::vector<arch::Recompute> recompute{};     // one per block; empty = none
  Offload offload{};
  int64_t device_limit = 0;  // bytes of a rank; 0 = none
  // Over the axis tp: norms, dropout and sums act on 1/tp of the rows. Means nothing for tp 1.
  bool sequence_parallel = true;
  // Over the axis tp: parameters that every rank holds whole, and whose gradients are parts of a sum, are groups of their own. Means
  // nothing with a parameter server, which sums over other samples alone.
  bool row_groups = false;
  bool overlap = true;  // reduce a bucket as soon as it is full, otherwise all after the last backward; and sum the
                        // gradients of inputs over tp beside the weight gradients
  int threads = 1;               // compute threads of a rank (train.threads; 1 where it says 0 = by the machine): kernels have
                                 // a scratch area per thread
  // How the ranks of the axis cp hold every sequence in parts. Means nothing for cp 1.
  config::ContextKind context = config::ContextKind::kRing;
  int context_inner = 1;
  config::ContextSplit context_split = config::ContextSplit::kZigzag;
  bool document_mask = false;    // tokens see their own document alone ...
  bool reset_positions = false;  // ... and positions count from its beginning
  config::Pack pack = config::Pack::kStream;
  config::MoeSection moe{};
  // Ranks over which the experts of a layer are shared out, and over which each is cut: of the ranks of one coordinate on pp, whatever
  // the other axes are (Liu et al. 2025, MoE Parallel Folding). Mean nothing without experts.
  int ep = 1, etp = 1;
  bool overlap_experts = false;  // rows of one microbatch travel to experts and back beside the work of another (passes.h, divide_layers)
  // How tokens come to experts on other ranks; of a hierarchical one how many neighbours of ep x etp are on one node.
  config::Dispatcher dispatcher = config::Dispatcher::kAllToAll;
  int node_ranks = 1;

  arch::ContextShard context_shard() const {
    return {.ranks = mesh.degree(mesh::Axis::kCp), .kind = context, .inner = context_inner, .split = context_split,
            .documents = document_mask && !whole_pieces()};
  }
  // Every rank of cp holds whole pieces of every sequence, whatever its documents are (data::TokenSplit).
  bool whole_pieces() const { return model.has_state_space(); }
  int64_t tokens_here() const { return context_shard().tokens_here(seq_len); }  // of each sequence, on a rank of cp
  // What a layer must be told of where its tokens stand (nn::TokenPlaces).
  bool has_places() const { return mesh.degree(mesh::Axis::kCp) > 1 || document_mask || reset_positions || pack == config::Pack::kDocuments; }

  // Axes by what they mean. Along samples() ranks see other sequences, and each coordinate on them has a replica: one full copy
  // of the model. Along tokens() they see other tokens: gradients and losses are parts of a sum.
  mesh::AxisSet samples() const { return mesh::Axis::kDpReplicate | mesh::Axis::kDpShard; }
  mesh::AxisSet tokens() const { return samples() | mesh::Axis::kCp; }
  mesh::AxisSet model_group() const { return mesh::Axis::kPp | mesh::Axis::kTp; }  // hold one copy of the model together
  mesh::AxisSet all_ranks() const { return tokens() | model_group(); }             // train together: loss, norm
  // Those of a stage as experts see them: what is left beside ep and etp holds the same experts (edp), and is shared out as far as
  // dp_replicate leaves it. InternalError where ep x etp does not divide them.
  mesh::ExpertDegrees expert_degrees() const;
  mesh::View expert_ranks() const;  // hold all experts of a layer together: over ep and etp
  // Of them, under a hierarchical dispatcher, those of equal place on all nodes, and those of one node.
  bool dispatches_by_node() const { return dispatcher == config::Dispatcher::kHierarchical && model.has_experts() && ep * etp > 1; }
  mesh::View expert_nodes() const;
  mesh::View expert_node() const;
  // Of the ranks of cp, under context 2d, those that exchange heads for tokens, and those of equal place among these, which are a ring.
  bool nests_context() const { return context == config::ContextKind::k2d && mesh.degree(mesh::Axis::kCp) > 1; }
  mesh::View context_inner_ranks() const;
  mesh::View context_outer_ranks() const;
  // Of a group: dense parameters are summed over tokens(), rows over tp too, experts over the ranks that hold the same ones; each is
  // shared out among as many of them as zero says. Where experts lie as all else does (ep 1, etp = tp) it is the dense one.
  Domain domain(arch::ParameterGroup group) const;
  Domain dense_domain() const { return domain(arch::ParameterGroup::kDense); }

  int64_t num_microbatches() const;  // global_batch / (micro_batch * replicas)
  int64_t element_size() const { return config::bytes_of(precision); }  // of activations and most of the compute copy: 4 fp32, 2 bf16
  // Of a group's compute copy.
  config::Precision precision_of(arch::ParameterGroup group) const {
    return group == arch::ParameterGroup::kFp32 ? config::Precision::kFp32 : precision;
  }
  int64_t element_size(arch::ParameterGroup group) const { return config::bytes_of(precision_of(group)); }
  // Of a group's gradients on the wire.
  config::Precision reduce_precision_of(arch::ParameterGroup group) const {
    return group == arch::ParameterGroup::kFp32 ? config::Precision::kFp32 : reduce_precision;
  }
  // Something of the others is bf16: what is used in fp32 is a group of its own.
  bool has_fp32_group() const { return precision == config::Precision::kBf16 || reduce_precision == config::Precision::kBf16; }
  // Its gradients are summed over tp too, by its domain: rows, and what is used in fp32 where rows are a group.
  bool sums_over_tensor(arch::ParameterGroup group) const;
  arch::TensorShard tensor_shard(int rank) const;
  arch::CostInput cost_input(int rank, arch::Recompute choice = arch::Recompute::kNone) const;  // of a layer of `rank`
  // With the pieces of `rank` and the rules of their updates: of the layers it holds, and of those that own parameters its layers
  // are tied to.
  std::vector<arch::ParamSpec> param_table(int rank) const;
  int num_layers() const { return static_cast<int>(model.layers) + 2; }  // of arch::layer_table
  // Units by id (arch::ParamSpec::unit).
  int num_units() const {
    if (has_fp32_group()) return num_layers() * static_cast<int>(arch::kParameterGroups.size());
    return num_layers() * (model.has_experts() ? 3 : row_groups ? 2 : 1);
  }
  arch::ParameterGroup group_of(int unit) const { return static_cast<arch::ParameterGroup>(unit / num_layers()); }
  int layer_of(int unit) const { return unit % num_layers(); }
  int pipeline_rank(int rank) const { return mesh.coordinates(rank)[mesh::Axis::kPp]; }
  int pipelines() const { return mesh.world_size() / pipeline.ranks; }  // ranks of one coordinate on pp, which varies slowest
  struct Stretch {
    int begin = 0;
    int end = 0;
  };
  Stretch stage_layers(int stage) const;
  std::vector<int> layers_of(int rank) const;  // ascending
  bool holds(int rank, int layer) const { return pipeline.rank_of(pipeline.stage_of(layer)) == pipeline_rank(rank); }
  // Who has that stage of the same replica and part of its layers.
  int rank_at(int rank, int stage) const { return mesh.member(rank, mesh::Axis::kPp, pipeline.rank_of(stage)); }
  // The other rank that holds the unit of a tied parameter, because the layers that use it are on different ranks; -1:
  // there is none.
  int tied_peer(int rank) const;
  // Ranks that share out the states of a group, 1 with zero 0, and which of them. Rows have several where dense parameters have;
  // experts have as many as they have: one where those have several, or the other way round.
  int shards(arch::ParameterGroup group = arch::ParameterGroup::kDense) const;
  int shard(int rank, arch::ParameterGroup group = arch::ParameterGroup::kDense) const;
  int shards_of_unit(int unit) const { return shards(group_of(unit)); }
  bool shares_states() const;  // the states of some group
  arch::FlatLayout flat_layout(const std::vector<arch::ParamSpec>& table) const;  // cut for the shards of each group
  arch::FlatLayout flat_layout(int rank) const { return flat_layout(param_table(rank)); }
  // Gathered parameters come and go: zero 3 with several shards, or parameters on the host. Of a group; without one, of any.
  bool sharded_parameters(arch::ParameterGroup group) const { return zero == 3 && shards(group) > 1; }
  bool sharded_parameters() const { return zero == 3 && shares_states(); }
  bool transient_parameters(arch::ParameterGroup group) const { return sharded_parameters(group) || offload.parameters; }
  bool transient_parameters() const { return sharded_parameters() || offload.parameters; }
  // The whole gradient of a unit lives only until it is reduced; what stays is this rank's shard, on the device or the host. Of a
  // group; without one, of any.
  bool transient_gradients(arch::ParameterGroup group) const { return (zero >= 2 && shards(group) > 1) || offload.optimizer; }
  bool transient_gradients() const { return (zero >= 2 && shares_states()) || offload.optimizer; }
  // In a pipeline microbatches come in between: transient gradients are added up over all of them before they are reduced.
  bool reduces_once() const { return pipeline.ranks > 1; }
  arch::Recompute recompute_of(int layer) const;  // of the layer table; none for embedding and head
  // A parameter server among several data-parallel ranks.
  bool server_mode() const { return data_parallel == config::DataParallel::kParameterServer && mesh.degree(tokens()) > 1; }
  // The rank holds optimizer state: everyone, but of a parameter server's group the server alone.
  bool owns_optimizer(int rank) const;
  // Every parameter counts once in the norm. It is summed over the model group where each replica has all squares, else over all
  // ranks; of the ranks that hold the same shard of a group the first counts it (those of tp with copies of a parameter: ParamSpec).
  bool norm_over_all_ranks() const;
  mesh::View norm_ranks() const { return norm_over_all_ranks() ? all_ranks() : model_group(); }
  bool counts_in_norm(int rank, arch::ParameterGroup group) const;
  // What LOSS sums behind loss, tokens and flag: of every block of experts, in the order of the layers, its loads
  // (nn::Layer::take_loads): E counts, then the assignments dropped, and the sums of both router losses.
  bool is_expert_block(int layer) const;     // of the layer table
  // Rows leave it for other ranks and come back, once each way: it can be divided there.
  bool divisible(int layer) const {
    return ep * etp > 1 && dispatcher == config::Dispatcher::kAllToAll && !moe.imbalance_limit && is_expert_block(layer);
  }
  int64_t load_numbers() const;              // of all layers, stages of other ranks included; 0 without experts
  int64_t load_offset(int layer) const;      // of them, where those of an expert block begin
};
using arch::kLoadExtras;

// The cost of every layer as `rank` runs it, under its recompute choice.
std::vector<arch::LayerCost> layer_costs(const Layout& layout, int rank);

// The layout of the one-rank twin: same model, global batch and precision on one rank.
Layout reference_layout(const Layout& layout);
// "pp 2 (1f1b) x dp 2 (ring), 2 microbatches x 4 sequences x 256 tokens, fp32".
std::string describe(const Layout& layout);

// Global sequence indices [begin, end) of microbatch `microbatch` on `rank`: rank r takes the r-th contiguous part of the
// global batch, its microbatches in order.
mesh::Range microbatch_samples(const Layout& layout, int rank, int64_t microbatch);

}  // namespace lockstep::program
