// The named state that a rank holds, as checkpoints see it: global tensors, of which this rank has a rectangular piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::engine {

enum class StateKind { kParameter, kMaster, kExpAvg, kExpAvgSq };

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
