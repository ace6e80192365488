// Every layer of every model family on the GPU, forward and backward, against the same layers on the CPU, which
// model.model_test compares with autograd.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/model/model.h"
#include "support/model_parameters.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using arch::Family;
using testing::gpu_device;
using testing::ModelParameters;

constexpr uint64_t kSeed = 1234;

arch::ModelConfig model_of(Family family, bool tied, double dropout) {
  arch::ModelConfig model{.family = family,
                          .layers = 2,
                          .hidden = 48,
                          .heads = 6,
                          .kv_heads = 6,
                          .head_size = 8,
                          .ffn = 80,
                          .vocab_size = 101,
                          .max_seq_len = 32,
                          .tied = tied,
                          .dropout = dropout};
  if (family != Family::kGpt2) model.kv_heads = 2;
  return model;
}

// What a forward and backward leave, in order: outputs of the layers, the loss, gradients of their inputs.
std::vector<at::Tensor> run(const arch::ModelConfig& model, ModelParameters& parameters, const nn::Microbatch& microbatch) {
  const auto layers = build_layers(model, parameters, {.seed = kSeed});
  std::vector<std::unique_ptr<nn::Saved>> saved(layers.size());
  std::vector<at::Tensor> left;
  at::Tensor x;
  for (size_t i = 0; i < layers.size(); ++i) {
    x = layers[i]->forward(x, microbatch, &saved[i]);
    if (x.defined()) left.push_back(x.cpu().clone());
  }
  at::Tensor dy;
  for (size_t i = layers.size(); i-- > 0;) {
    dy = layers[i]->backward_input(dy, *saved[i]);
    if (saved[i]->loss.defined()) left.push_back(saved[i]->loss.cpu().clone());
    if (dy.defined()) left.push_back(dy.cpu().clone());
    layers[i]->backward_weight(*saved[i]);
  }
  return left;
}

struct Case {
  at::ScalarType dtype;
  double bound;
};
// bf16 has 8 bits: the two round in other places, by up to 2^-9 of an operator's result.
const std::vector<Case> kCases = {{.dtype = at::kFloat, .bound = 1e-5}, {.dtype = at::kBFloat16, .bound = 0.05}};

void compare(const arch::ModelConfig& model, const Case& c) {
  ModelParameters here(model, kSeed, c.dtype), there(model, kSeed, c.dtype, {}, gpu_device());
  nn::Microbatch microbatch = testing::random_microbatch(model, 2, 9, /*ignore_every=*/4);
  microbatch.step = 11;
  if (model.has_experts()) microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
  const std::vector<at::Tensor> expected = run(model, here, microbatch);
  microbatch.tokens = microbatch.tokens.to(gpu_device());
  microbatch.targets = microbatch.targets.to(gpu_device());
  if (model.has_experts()) microbatch.sequence_targets = microbatch.sequence_targets.to(gpu_device());
  const std::vector<at::Tensor> actual = run(model, there, microbatch);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) testing::expect_close(actual[i], expected[i], cat("value ", i), c.bound);
  for (const arch::ParamSpec& spec : here.table()) {
    if (spec.name.ends_with("attention.k.bias")) continue;  // zero but for rounding
    testing::expect_close(there.parameter(spec.name).grad.cpu(), here.parameter(spec.name).grad, spec.name, c.bound);
  }
}

TEST(Model, EveryFamilyComputesOnTheGpuWhatItComputesOnTheCpu) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kQwen2, Family::kQwen3})
    for (const double dropout : {0.0, 0.2})
      for (const Case& c : kCases) {
        const arch::ModelConfig model = model_of(family, /*tied=*/dropout == 0, dropout);
        SCOPED_TRACE(cat(arch::family_name(family), " dropout ", dropout, " ", c10::toString(c.dtype)));
        compare(model, c);
      }
}

// fp32 alone: in bf16 what comes to a router rounds otherwise, and a token whose scores are close may go to another expert.
TEST(Model, BlocksOfExpertsToo) {
  for (const char* preset : {"mixtral-test", "deepseek-test"}) {
    SCOPED_TRACE(preset);
    config::ModelSection section{.preset = preset};
    section.layers = 2;
    compare(arch::resolve_model(section), {.dtype = at::kFloat, .bound = 5e-5});
  }
}

// A state space alone, with an MLP, and beside attention, with multipliers; groups, chunks and channels that kernels do not divide.
TEST(Model, StateSpacesToo) {
  const arch::Branch ssm{.kind = std::string(arch::kStateSpace), .name = "ssm"}, mlp{.kind = "mlp", .name = "mlp"};
  arch::Branch attention{.kind = "attention", .name = "attention"};
  attention.beside = true, attention.norm_before = false;
  for (const int64_t norm_groups : {0, 2})
    for (const Case& c : kCases) {
      SCOPED_TRACE(cat("norm groups ", norm_groups, " ", c10::toString(c.dtype)));
      arch::ModelConfig model = model_of(Family::kLlama, /*tied=*/true, /*dropout=*/0);
      model.blocks = {{ssm}, {ssm, attention, mlp}};
      model.state_space = {.heads = 4, .head_size = 5, .groups = 2, .state = 6, .chunk = 4, .norm_groups = norm_groups};
      model.multipliers = {.key = 0.7, .state_in = 1.3, .state_out = 0.6, .dt = 0.8, .gate = 0.9, .logits = 0.5};
      compare(model, c);
    }
}

}  // namespace
}  // namespace lockstep::model
