// Parameters of a sharded layer that is used alone, without an engine: this rank's part of a whole one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/nn/layer.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

struct WholeParameter {
  std::string_view name{};        // of its stream of initial values: the same on all ranks
  std::vector<int64_t> shape{};   // whole; one dim or two
  int cut_dim = -1;               // along which the ranks share it out (mesh::shard_range); -1: each has all of it
  double init_std = 0.02;         // normal numbers; 0: zeros
  uint64_t seed = 1234;
  at::TensorOptions options = at::kFloat;  // dtype (fp32 or bf16) and device of the value
};

// The value, and a gradient of zeros in fp32; both are the caller's. Element i of the whole parameter is drawn from (seed, name, i),
// so that the parts of any number of ranks are those of the whole, and what model/ draws for a parameter of this name.
// InternalError where the shape cannot be shared out.
nn::Parameter own_parameter(const WholeParameter& whole, const TensorGroup& group);

}  // namespace lockstep::parallel
