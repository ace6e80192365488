// The ParamSpec table: one row per parameter, in the order of the forward pass. Allocation, initial values, shards,
// checkpoint names and parameter counts all derive from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/mesh/mesh.h"
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

enum class Init { kNormal, kZeros, kOnes };

struct ParamSpec {
  std::string name;                   // "blocks.3.attention.q.weight": the same in every layout
  std::vector<int64_t> shape;         // global; linear weights are [out, in]
  std::map<mesh::Axis, mesh::Placement> placements;  // axes not named: Replicate
  Init init = Init::kNormal;
  double init_std = 0;                // kNormal: 0.02, output projections 0.02 / sqrt(2 L)
  bool weight_decay = false;          // parameters of two or more dimensions
  int layer = 0;                      // owner in the layer table
  std::string fuse;                   // "" or the name under which neighbouring rows form one matrix:
                                      // "blocks.3.attention.qkv.weight" = q, k, v stacked along dim 0
  std::vector<int> tied_layers;       // further layers that use it (the head uses a tied "embed.tokens.weight")
  int64_t numel() const;
};

// gpt2:  embed.tokens.weight [V, D], embed.positions.weight [max_seq_len, D],
//        blocks.i.attention_norm.{weight,bias} [D], blocks.i.attention.{q,k,v}.{weight [H*K, D], bias [H*K]} (fused qkv),
//        blocks.i.attention.out.{weight [D, H*K], bias [D]}, blocks.i.mlp_norm.{weight,bias},
//        blocks.i.mlp.up.{weight [F, D], bias}, blocks.i.mlp.down.{weight [D, F], bias}, head.norm.{weight,bias}
//        and, untied, head.weight [V, D].
// llama: no positions, no biases, k and v [KV*K, D], blocks.i.mlp.{gate,up}.weight [F, D] (fused gate_up), mlp.down.
std::vector<ParamSpec> param_table(const ModelConfig& model);
int64_t num_parameters(const ModelConfig& model);

// Where each parameter lies in the flat buffers: one contiguous unit per layer, units in layer order, parameters of a unit
// in table order with fused rows side by side. Offsets and sizes in elements.
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
};
struct FlatLayout {
  std::vector<FlatUnit> units;  // one per layer that owns parameters
  int64_t numel = 0;            // of a whole flat buffer, padding included
};
// `shards`: an equal cut of every unit into that many parts falls on row boundaries (padding in between where needed).
FlatLayout flat_layout(const std::vector<ParamSpec>& table, int shards = 1);

}  // namespace lockstep::arch
