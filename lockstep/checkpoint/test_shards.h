// States as the ranks of a sharded layout hold them: of every parameter the rectangles of this rank's part of the flat
// units, which may be several, or none.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

// replicate x shard x tp ranks, tp fastest; `zero` 1 and 2 share out the optimizer state, 3 also the parameters. Experts lie over the
// same ranks as edp x ep x etp.
struct Sharding {
  int zero = 0;
  int replicate = 1, shard = 1, tp = 1;
  int ep = 1, etp = 1;
  bool bf16 = false;  // parameters, with fp32 master weights

  int ranks() const { return replicate * shard * tp; }
  int edp() const { return ranks() / (ep * etp); }

  // Of the ranks that hold the same pieces of a group: parts into which states are cut, and which this is of how many copies.
  struct Place {
    int index = 0, shards = 1, copies = 1;
    int shard() const { return index % shards; }
    int copy() const { return index / shards; }
  };
  Place place(arch::ParameterGroup group, int rank) const {
    if (group != arch::ParameterGroup::kExperts) return {.index = rank / tp, .shards = shard, .copies = replicate};
    const int copies = std::gcd(replicate, edp());
    return {.index = rank / (ep * etp), .shards = edp() / copies, .copies = copies};
  }
  arch::TensorShard tensor_shard(int rank) const {
    return {.size = tp, .rank = rank % tp, .experts = {.ep = ep, .ep_rank = rank / etp % ep, .etp = etp, .etp_rank = rank % etp}};
  }
  std::string text() const {
    return cat("zero ", zero, " dp ", replicate, " x ", shard, " tp ", tp, " ep ", ep, " etp ", etp, bf16 ? " bf16" : "");
  }
};

// Another one for every kind.
inline int64_t number_of(engine::StateKind kind) {
  if (kind == engine::StateKind::kParameter) return 0;
  return kind == engine::StateKind::kMaster ? 1 : kind.key == "exp_avg" ? 2 : 3;
}

// Values of a whole tensor: others for every name and kind, each of them other in bf16 too.
inline at::Tensor whole_values(const arch::ParamSpec& spec, engine::StateKind kind) {
  const auto first = static_cast<int64_t>(hash64(spec.name) % 997) + 1009 * number_of(kind);
  return at::arange(first, first + spec.numel()).to(at::kFloat).div_(7).reshape(spec.shape);
}

// The values that `tensor` must hold.
inline at::Tensor values_of(const std::vector<arch::ParamSpec>& table, const engine::StateTensor& tensor) {
  for (const arch::ParamSpec& spec : table) {
    if (spec.name != tensor.name) continue;
    // An fp32 parameter is what its master weights are.
    at::Tensor values = whole_values(spec, tensor.kind == engine::StateKind::kMaster ? engine::StateKind::kParameter : tensor.kind);
    for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
      values = values.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
    return values.to(tensor.local.scalar_type());
  }
  return {};
}

namespace shards_detail {

// Elements [begin, begin + numel) of this rank's piece of a parameter, as views of one buffer, which begins as zeros.
inline void add_range(const arch::ParamSpec& spec, engine::StateKind kind, at::ScalarType dtype, int64_t begin,
                      int64_t numel, int replica, int replicas, std::vector<engine::StateTensor>* state) {
  const at::Tensor buffer = at::zeros({numel}, at::TensorOptions().dtype(dtype));
  for (const arch::Rectangle& part : arch::rectangles(spec.local_shape, begin, numel)) {
    engine::StateTensor tensor{.name = spec.name, .kind = kind, .global_shape = spec.shape, .offset = part.offset, .local = {},
                               .replica = replica * spec.copies + spec.copy, .num_replicas = replicas * spec.copies};
    int64_t size = 1;
    for (size_t dim = 0; dim < part.shape.size(); ++dim) {
      tensor.offset[dim] += spec.local_offset[dim];
      size *= part.shape[dim];
    }
    tensor.local = buffer.narrow(0, part.begin, size).view(part.shape);
    state->push_back(std::move(tensor));
  }
}

}  // namespace shards_detail

// Zeros, as a store begins; `optimizer` false: parameters alone.
inline std::vector<engine::StateTensor> sharded_state(const arch::ModelConfig& model, const Sharding& layout, int rank,
                                                      bool optimizer = true) {
  using engine::StateKind;
  const auto table = arch::param_table(model, layout.tensor_shard(rank));
  arch::GroupShards shards{};
  for (const arch::ParameterGroup group : arch::kParameterGroups) shards[static_cast<size_t>(group)] = layout.place(group, rank).shards;
  const arch::FlatLayout flat = arch::flat_layout(table, shards);
  std::vector<engine::StateTensor> state;
  const auto add = [&](StateKind kind, at::ScalarType dtype, bool sharded) {
    for (const arch::FlatUnit& unit : flat.units) {
      const Sharding::Place place = layout.place(unit.group, rank);
      if (sharded) {
        for (const arch::ShardSlot& slot : arch::shard_slots(unit, place.shard()))
          shards_detail::add_range(table[static_cast<size_t>(slot.param)], kind, dtype, slot.begin, slot.numel, place.copy(),
                                   place.copies, &state);
        continue;
      }
      for (const arch::FlatSlot& slot : unit.slots)
        shards_detail::add_range(table[static_cast<size_t>(slot.param)], kind, dtype, 0, slot.numel, place.index,
                                 place.shards * place.copies, &state);
    }
  };
  add(StateKind::kParameter, layout.bf16 ? at::kBFloat16 : at::kFloat, layout.zero == 3);
  if (!optimizer) return state;
  if (layout.bf16) add(StateKind::kMaster, at::kFloat, layout.zero > 0);
  add(StateKind{"exp_avg"}, at::kFloat, layout.zero > 0);
  add(StateKind{"exp_avg_sq"}, at::kFloat, layout.zero > 0);
  return state;
}

// The same with the values of whole_values().
inline std::vector<engine::StateTensor> filled_state(const arch::ModelConfig& model, const Sharding& layout, int rank) {
  const auto table = arch::param_table(model);
  auto state = sharded_state(model, layout, rank);
  for (engine::StateTensor& tensor : state) tensor.local.copy_(values_of(table, tensor));
  return state;
}

}  // namespace lockstep::checkpoint
