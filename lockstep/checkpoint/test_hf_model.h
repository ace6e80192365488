// What the tests of model directories share: tiny models of every family with random values, written as transformers
// would, and their pieces as ranks hold them.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/arch/hf_names.h"
#include "lockstep/arch/params.h"
#include "lockstep/checkpoint/hf_directory.h"
#include "lockstep/checkpoint/hf_place.h"
#include "lockstep/checkpoint/safetensors_writer.h"
#include "lockstep/engine/state.h"
#include "lockstep/mesh/placement.h"
#include "support/folders.h"

namespace lockstep::checkpoint {

using Values = std::map<std::string, at::Tensor>;  // by name

inline arch::ModelConfig tiny_model(arch::Family family, bool tied = false) {
  const bool gpt2 = family == arch::Family::kGpt2;
  arch::ModelConfig model{.family = family, .layers = 2, .hidden = 24, .heads = 4, .kv_heads = gpt2 ? 4 : 2, .head_size = gpt2 ? 6 : 8,
                          .ffn = 40, .vocab_size = 61, .max_seq_len = 16, .tied = tied};
  if (family == arch::Family::kMixtral) model.experts = {.count = 8, .per_token = 2, .ffn = 40};
  if (family == arch::Family::kQwen3Moe)
    model.experts = {.count = 4, .per_token = 2, .ffn = 20, .router = config::Router::kSoftmax, .dense_layers = {1}};
  if (family == arch::Family::kDeepseekV3) {
    model.kv_heads = 4;
    model.latent = {.q_rank = 10, .kv_rank = 12, .nope = 4, .rope = 4, .value = 6};
    model.experts = {.count = 4, .per_token = 2, .ffn = 20, .shared = 1, .router = config::Router::kSigmoid, .groups = 2,
                     .top_groups = 1, .routed_scale = 2.5, .router_bias = true, .dense_layers = {0}};
  }
  return model;
}

// Of families that keep several parameters in one tensor: gpt_neox, phi3, gpt_oss, and a hybrid of bamba.
inline std::vector<arch::ModelConfig> joint_models() {
  const auto model = [](arch::Family family) {
    return arch::ModelConfig{.family = family, .layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .head_size = 8, .ffn = 40,
                             .vocab_size = 61, .max_seq_len = 16, .tied = false};
  };
  arch::ModelConfig neox = model(arch::Family::kGptNeox), oss = model(arch::Family::kGptOss), bamba = model(arch::Family::kBamba);
  neox.kv_heads = 4;
  oss.attention_sinks = true;
  oss.experts = {.count = 3, .per_token = 2, .ffn = 40, .router = config::Router::kSoftmaxAfterTopk, .logit_bias = true, .biases = true,
                 .clamp = 7};
  bamba.state_space = {.heads = 8, .head_size = 8, .groups = 2, .state = 4, .chunk = 8, .norm_groups = 2};
  const arch::Branch state_space{.kind = std::string(arch::kStateSpace), .name = "ssm"};
  bamba.blocks = {{state_space, arch::usual_block()[1]}, arch::usual_block()};
  return {neox, model(arch::Family::kPhi3), oss, bamba};
}

// Our parameters.
inline Values random_values(const arch::ModelConfig& model, at::ScalarType dtype = at::kFloat) {
  Values values;
  for (const arch::ParamSpec& spec : arch::param_table(model)) values[spec.name] = at::randn(spec.shape).to(dtype);
  return values;
}

// The same as their tensors.
inline Values hf_values(const arch::ModelConfig& model, const Values& ours, arch::HfForm form = arch::HfForm::kUsual) {
  Values theirs;
  for (const arch::HfTensor& tensor : arch::hf_tensors(model, form)) {
    const at::Tensor stored = at::empty(tensor.shape, ours.at(tensor.parts.front().name).options());
    for (const arch::HfPart& part : tensor.parts) {
      const at::Tensor place = hf_place(stored, tensor, part);
      place.copy_(ours.at(part.name).view(place.sizes()));
    }
    theirs[tensor.name] = tensor.fp32 ? stored.to(at::kFloat) : stored;
  }
  return theirs;
}

inline std::filesystem::path fresh_folder(const std::string& name) { return support::fresh_folder("hf-" + name); }

inline void write_tensors(const std::filesystem::path& file, const Values& values) {
  std::filesystem::remove(file);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, value] : values) tensors.push_back({name, value});
  write_safetensors(file, tensors, {{"format", "pt"}});
}

// A piece of every parameter, as rank `rank` of `ranks` holds it: rows, columns or both are cut, a vector is replicated.
inline std::vector<engine::StateTensor> state_of(const arch::ModelConfig& model, int ranks, int rank,
                                                 at::ScalarType dtype = at::kFloat) {
  std::vector<engine::StateTensor> state;
  int turn = 0;
  for (const arch::ParamSpec& spec : arch::param_table(model)) {
    engine::StateTensor tensor{.name = spec.name, .global_shape = spec.shape, .offset = std::vector<int64_t>(spec.shape.size(), 0),
                               .local = {}};
    std::vector<int64_t> shape = spec.shape;
    if (spec.shape.size() == 1) {
      tensor.replica = rank;
      tensor.num_replicas = ranks;
    } else {
      const size_t dim = turn++ % 2;
      const auto range = mesh::shard_range(shape[dim], ranks, rank);
      tensor.offset[dim] = range.begin;
      shape[dim] = range.size();
    }
    tensor.local = at::empty(shape, at::TensorOptions().dtype(dtype));
    state.push_back(std::move(tensor));
  }
  return state;
}

// What the piece must hold.
inline at::Tensor piece_of(const Values& values, const engine::StateTensor& tensor) {
  at::Tensor piece = values.at(tensor.name);
  for (int64_t dim = 0; dim < piece.dim(); ++dim)
    piece = piece.narrow(dim, tensor.offset[static_cast<size_t>(dim)], tensor.local.size(dim));
  return piece.to(tensor.local.scalar_type());
}

}  // namespace lockstep::checkpoint
