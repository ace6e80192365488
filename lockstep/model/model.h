// The layers of a model, built from arch/ and this rank's coordinates, and their initial values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/config/run_config.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/nn/layer.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::model {

struct ModelOptions {
  uint64_t seed = 1234;  // of dropout
  bool training = true;  // false: dropout off
  // The ranks that hold this model's layers together; outlives the layers. Null: this rank holds all of it.
  parallel::TensorGroup* tensor = nullptr;
  // The ranks that share the experts of its layers; outlives the layers. Null: this rank has all of them, whole.
  parallel::ExpertGroup* experts = nullptr;
  // The ranks that hold parts of the same sequences; outlives the layers. Null: this rank has whole sequences.
  parallel::ContextGroup* context = nullptr;
  config::MoeSection moe{};  // capacity and losses of layers with experts
  // The layers that this rank runs, ascending; empty = all.
  std::vector<int> layers{};
};

// One nn::Layer per row of arch::layer_table, in order; null for those that another rank runs. Parameters are looked up in `source` once, here.
std::vector<std::unique_ptr<nn::Layer>> build_layers(const arch::ModelConfig& model, nn::ParameterSource& source,
                                                     const ModelOptions& options);

// Initial values of elements [first, first + out.numel()) of the parameter (row-major global index), fp32 on CPU: a pure
// function of (seed, name, index), the same for every layout.
void initial_values(const arch::ParamSpec& spec, uint64_t seed, int64_t first, std::span<float> out);

}  // namespace lockstep::model
