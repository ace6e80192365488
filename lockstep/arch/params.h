// The ParamSpec table: one row per parameter, in the order of the forward pass. Allocation, initial values, shards,
// checkpoint names and parameter counts all derive from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/arch/optimizer.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::arch {

enum class LayerKind { kEmbedding, kBlock, kHead };

// The unit of the step program: what one F or B action runs. Layer 0 = embedding, 1..L = blocks, L+1 = final norm + head + loss.
struct LayerSpec {
  LayerKind kind = LayerKind::kBlock;
  int index = 0;        // in the model
  std::string name;     // "embed", "blocks.3", "head"
  bool operator==(const LayerSpec&) const = default;
};
std::vector<LayerSpec> layer_table(const ModelConfig& model);
LayerSpec layer_spec(const ModelConfig& model, int index);

enum class Init {
  kNormal,
  kZeros,
  kOnes,
  kUniform,      // within +- init_std
  kLogDecay,     // log of uniform numbers within 1 .. 16: a_log of a state space
  kTimeStep,     // what softplus makes numbers of, uniform in their logarithm within 0.001 .. 0.1 (Mamba)
};

// How tensor parallelism cuts a parameter (Shoeybi et al. 2019, section 3).
enum class TensorCut {
  kNone,           // every rank holds all of it
  kRows,           // dim 0: the outputs of a column-parallel linear and their biases, the vocabulary
  kColumns,        // dim 1: the inputs of a row-parallel linear
  kKeyValueHeads,  // dim 0 by key/value heads; where there are fewer heads than ranks, several ranks hold one
  kGroups,         // dim 0 by groups of a state space where their number is a multiple of the ranks; else whole on every rank, and
                   // Partial: each uses the group of its heads
};

// Which experts a table has, of which each rank of the stage has model.experts.count / ep, one after the other; and its part of each.
struct ExpertShard {
  int ep = 1;
  int ep_rank = 0;
  int etp = 1;  // gate and up are cut by rows, down by columns
  int etp_rank = 0;
  bool operator==(const ExpertShard&) const = default;
};

// Which rank of the tp axis a table is for.
struct TensorShard {
  int size = 1;
  int rank = 0;
  bool sequence_parallel = false;  // norms, dropout and sums act on this rank's rows alone
  bool row_groups = false;         // what that makes Partial is a group of its own
  bool fp32_group = false;         // something of the others is bf16: what is used in fp32 is a group of its own
  ExpertShard experts{};
};

// The parameters of a layer that are stored, gathered, reduced and updated together: a unit. program::Layout::domain says over
// which ranks. A layer has one group or more.
enum class ParameterGroup : uint8_t {
  kDense,
  kRows,     // whole on every rank of tp, each with its own rows or heads, neither a matrix nor fused with what is cut: their gradients are summed over tp too
  kExperts,  // of a rank's own experts: their gradients are summed over the ranks that hold the same ones
  kFp32,     // used and reduced in fp32 where others are not (ParamSpec::fp32), whole on every rank of tp: layers read the values themselves
};
inline constexpr std::array<ParameterGroup, 4> kParameterGroups = {ParameterGroup::kDense, ParameterGroup::kRows,
                                                                   ParameterGroup::kExperts, ParameterGroup::kFp32};

int64_t elements(const std::vector<int64_t>& shape);  // of a tensor of this shape

struct ParamSpec {
  std::string name;                   // "blocks.3.attention.q.weight": the same in every layout
  std::vector<int64_t> shape;         // global; linear weights are [out, in]
  Init init = Init::kNormal;
  double init_std = 0;                // kUniform: the bound; kNormal: 0.02, output projections 0.02 / sqrt(2 L)
  bool weight_decay = false;          // parameters of two or more dimensions, where no rule says otherwise
  config::ParameterClass of = config::ParameterClass::kMatrix;
  UpdateRule update{};                // AdamW, until choose_optimizers()
  int layer = 0;                      // owner in the layer table
  ParameterGroup group = ParameterGroup::kDense;
  int unit = 0;                       // id: of a dense group its layer; of every further group one layer table beyond
  std::string fuse;                   // "" or the name under which neighbouring rows form one matrix:
                                      // "blocks.3.attention.qkv.weight" = q, k, v stacked along dim 0
  std::vector<int> tied_layers;       // further layers that use it (the head uses a tied "embed.tokens.weight")
  TensorCut cut = TensorCut::kNone;
  int cut_dim = -1;                   // along which tp, of an expert etp, cuts it into pieces; -1: it does not
  bool per_head = false;              // whole on every rank, but applied to this rank's heads: norms of q and k, steps of a state space
  int expert = -1;                    // whose it is, from 0 of the model's; -1: no expert's
  bool fp32 = false;                  // used in fp32 whatever the precision of the run; no tensor parallelism cuts it
  bool in_norm = true;                // its gradient counts in the norm of all; that of a router's bias is a count of tokens

  // This rank's piece, and which ranks of the tp axis hold the same one: `copies` neighbours, this one the copy-th. An expert has
  // one copy here: who else holds it is a fact of its group's domain.
  std::vector<int64_t> local_shape;   // = shape where nothing is cut
  std::vector<int64_t> local_offset;
  int64_t largest_numel = 0;          // of the piece of any rank
  int copies = 1;
  int copy = 0;
  // After backward the gradient is one rank's part of a sum over the copies: Partial, until REDUCE_PARTIAL.
  bool partial = false;
  int64_t numel() const { return elements(shape); }
  int64_t local_numel() const { return elements(local_shape); }
};

// gpt2:  embed.tokens.weight [V, D], embed.positions.weight [max_seq_len, D],
//        blocks.i.attention_norm.{weight,bias} [D], blocks.i.attention.{q,k,v}.{weight [H*K, D], bias [H*K]} (fused qkv),
//        blocks.i.attention.out.{weight [D, H*K], bias [D]}, blocks.i.mlp_norm.{weight,bias},
//        blocks.i.mlp.up.{weight [F, D], bias}, blocks.i.mlp.down.{weight [D, F], bias}, head.norm.{weight,bias}
//        and, untied, head.weight [V, D].
// others: no positions, no bias of a norm, k and v [KV*K, D], blocks.i.mlp.{gate,up}.weight [F, D] (fused gate_up), mlp.down;
//        biases of linears as ModelConfig says (those of gate and up fused too), with qk_norm
//        blocks.i.attention.{q,k}_norm.weight [K].
// with latent attention, for q, k and v: blocks.i.attention.q_a.weight [Q, D] and kv_a.weight [C + R, D] (fused qkv_a), q_a_norm.weight [Q],
//        kv_a_norm.weight [C], q_b.weight [H (N + R), Q], kv_b.weight [H (N + V), C] (of each head its keys, then its values); out [D, H V].
// with experts, for blocks.i.mlp_norm and blocks.i.mlp of a block that is not dense: blocks.i.experts_norm.weight,
//        blocks.i.experts.router.weight [E, D] and, with router_bias, router.bias [E]; with shared experts
//        blocks.i.experts.shared.{gate,up}.weight [Fs, D] (fused gate_up), shared.down.weight [D, Fs], Fs = shared * F; then of each
//        expert e blocks.i.experts.e.{gate,up}.weight [F, D] (all of them fused as blocks.i.experts.gate_up.weight), and of each
//        blocks.i.experts.e.down.weight [D, F] (all fused as blocks.i.experts.down.weight).
// with a state space: blocks.i.ssm_norm, and blocks.i.ssm.{z,x,b,c,dt}.weight (fused ssm.in), conv_{x,b,c}.weight and .bias (fused ssm.conv),
//        {dt_bias,a_log,d}.weight [H] of the heads in fp32, norm.weight [H P], out.weight [D, H P]; StateSpaceSizes says the sizes.
// `shard`: whose pieces. The model's heads, kv_heads, state heads and groups, and experts fit the axes (config/check.h), all else may be uneven. A rank's table
// has the rows of its own experts alone.
std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard = {});
// The rows that these layers own.
std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard, const std::vector<int>& layers);
int64_t num_parameters(const ModelConfig& model);
int64_t num_active_parameters(const ModelConfig& model);  // that one token goes through: of the experts of a block `per_token`

// Gives every row its rule; a router's bias keeps its own. InternalError where that is of whole matrices and the row is none (rule_problems).
void choose_optimizers(const config::OptimizerSection& choice, std::vector<ParamSpec>& table);
// What is wrong with the rules for these parameters, in words: a whole-matrix optimizer of what is no matrix, a rule that names
// nothing.
std::vector<std::string> rule_problems(const config::OptimizerSection& choice, const std::vector<ParamSpec>& table);
// The parameter is updated as a whole matrix, and no rank has all of it.
bool is_scattered_matrix(const ParamSpec& spec, int shards);

// Where each parameter lies in the flat buffers: one contiguous unit per group of a layer, the dense ones first, each kind in
// layer order; parameters of a unit in table order with fused rows side by side. Offsets and sizes in elements. A parameter or fused group has the same
// place on every rank of the tp axis: where pieces are uneven, the smaller ones leave padding behind them.
struct FlatSlot {
  int param = 0;  // row of the table
  int64_t offset = 0;
  int64_t numel = 0;
};
struct FlatUnit {
  int layer = 0;
  int64_t begin = 0;
  int64_t end = 0;  // padded
  std::vector<FlatSlot> slots;
  int id = 0;       // ParamSpec::unit
  ParameterGroup group = ParameterGroup::kDense;
  int shards = 1;          // equal parts into which it is cut
  int64_t part_begin = 0;  // where its part lies in a buffer of one part of each unit, side by side
  int64_t numel() const { return end - begin; }
  int64_t part() const { return numel() / shards; }
};
struct FlatLayout {
  std::vector<FlatUnit> units;  // in ascending order of their ids
  int64_t numel = 0;            // of a whole flat buffer, padding included
  int64_t parts = 0;            // of a buffer of one part of each unit
  size_t index_of(int id) const;  // InternalError where there is no such unit
};
using GroupShards = std::array<int, kParameterGroups.size()>;  // number of shards, by group
// Every unit has a multiple of 16 * shards elements, so that its equal parts are aligned. A part may begin and end inside a
// row; shard_slots() says what it holds.
FlatLayout flat_layout(const std::vector<ParamSpec>& table, const GroupShards& shards = {1, 1, 1, 1});

// What part `shard` of a unit holds of one parameter: elements [begin, begin + numel) of its local piece, row-major.
struct ShardSlot {
  int param = 0;
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t offset = 0;  // in the part
};
std::vector<ShardSlot> shard_slots(const FlatUnit& unit, int shard);

// Where the slots of optimizers lie (slot_layout.cpp). A parameter has those of its own optimizer; slot i of all parameters of a
// unit is one buffer, in which those that have an i-th slot stand side by side.
// What a rank has of it.
struct SlotBuffer {
  std::string text{};  // in messages: "first moment"
  config::Precision dtype = config::Precision::kFp32;
  int64_t numel = 0;   // of each part: as many on all ranks, so a few may be unused
};
std::vector<SlotBuffer> slot_buffers(const std::vector<ParamSpec>& table, const FlatUnit& unit);

// Bytes of a part that an update reads and writes and that a checkpoint has: of the fp32 values and the slots.
int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatUnit& unit);
int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat);  // of all units

// Of part `shard`: [piece of shard_slots()][slot of its optimizer], where the piece begins in the buffer.
std::vector<std::vector<int64_t>> slot_offsets(const std::vector<ParamSpec>& table, const FlatUnit& unit, int shard);

// The slots of all optimizers in the table, by name, in the order of the registry: what can be asked of its parameters.
std::vector<StateSlot> slots_of(const std::vector<ParamSpec>& table);

// Elements [begin, begin + numel) of a row-major tensor of `shape` as rectangles, in order: at most three for a matrix
// (the rest of a row, whole rows, the beginning of a row).
struct Rectangle {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // first element, counted from the first of the range
};
std::vector<Rectangle> rectangles(const std::vector<int64_t>& shape, int64_t begin, int64_t numel);

}  // namespace lockstep::arch
