// The named state that a rank holds, as checkpoints see it: global tensors, of which this rank has a rectangular piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::engine {

// What of a parameter: the compute copy, the fp32 master weight, or a slot of its optimizer, StateKind{slot.name}.
struct StateKind {
  std::string_view key{};  // in the files "optim.<key>.<parameter>", of the compute copy none; outlives this
  static const StateKind kParameter, kMaster;
  auto operator<=>(const StateKind&) const = default;
};
inline constexpr StateKind StateKind::kParameter{};
inline constexpr StateKind StateKind::kMaster{"master"};

struct StateTensor {
  std::string name;                   // of the parameter: "blocks.3.mlp.up.weight"
  StateKind kind = StateKind::kParameter;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;        // of `local` in the global tensor, one number per dim
  at::Tensor local;                   // a view into the engine's flat buffers: loading writes through it
  int replica = 0;                    // which of `num_replicas` ranks that hold the same piece this one is
  int num_replicas = 1;
};

}  // namespace lockstep::engine
