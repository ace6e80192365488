// Blocks whose MLP is a layer of experts: recomputation and split backward change no bit, and generation is what the whole text gives.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/model/model.h"
#include "lockstep/nn/experts.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using arch::Recompute;
using testing::ModelParameters;
using testing::WeightGradients;

// Three blocks, the first one dense.
arch::ModelConfig model_of(config::Router router, double dropout = 0) {
  arch::ModelConfig model = testing::few_blocks(arch::Family::kLlama, 3, dropout);
  model.experts = {.count = 6, .per_token = 2, .ffn = 16, .shared = 1, .router = router, .dense_layers = {0}};
  return model;
}

// With every bias there is, and a clamp that some elements meet.
arch::ModelConfig biased_model(double dropout = 0) {
  arch::ModelConfig model = model_of(config::Router::kSoftmaxAfterTopk, dropout);
  model.experts.shared = 0;
  model.experts.logit_bias = model.experts.biases = true;
  model.experts.clamp = 0.05;
  return model;
}

// Biases begin as zeros.
void fill_biases(ModelParameters& parameters) {
  for (const arch::ParamSpec& spec : parameters.table())
    if (spec.name.ends_with(".bias")) parameters.parameter(spec.name).value.copy_(testing::random(spec.name, spec.local_shape, 0.1));
}

struct Outcome {
  double loss = 0;
  std::vector<std::vector<double>> loads;  // by layer
  std::vector<at::Tensor> gradients;
};

Outcome train(const arch::ModelConfig& model, const config::MoeSection& moe, Recompute choice, WeightGradients when) {
  ModelParameters parameters(model, 1);
  fill_biases(parameters);
  const auto layers = build_layers(model, parameters, {.seed = 1234, .moe = moe});
  Outcome outcome;
  for (int64_t i = 0; i < 2; ++i) {
    nn::Microbatch microbatch = testing::random_microbatch(model, 3, 9, 5, cat("microbatch ", i));
    microbatch.first_sample = i * 3;
    microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    outcome.loss += testing::forward_backward(layers, microbatch, std::vector<Recompute>(3, choice), when);
  }
  for (const auto& layer : layers) outcome.loads.push_back(layer->take_loads());
  for (const arch::ParamSpec& spec : parameters.table()) outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

TEST(Experts, RecomputationAndSplitBackwardChangeNoBit) {
  using config::Router;
  std::vector<arch::ModelConfig> models = {biased_model(), biased_model(0.1)};
  for (const Router router : {Router::kSoftmaxAfterTopk, Router::kSoftmax, Router::kSigmoid, Router::kExpertChoice})
    for (const double dropout : {0.0, 0.1}) models.push_back(model_of(router, dropout));
  for (const arch::ModelConfig& model : models) {
    const Router router = model.experts.router;
    const double dropout = model.dropout;
    config::MoeSection moe{.z_coefficient = 0.01};
    if (router == Router::kSoftmax) moe.capacity_factor = 1;
    const Outcome expected = train(model, moe, Recompute::kNone, WeightGradients::kInB);
    for (const Recompute choice : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
      for (const WeightGradients when : {WeightGradients::kInB, WeightGradients::kAfterAllInputs}) {
        SCOPED_TRACE(cat(static_cast<int>(router), " dropout ", dropout, " recompute ", static_cast<int>(choice)));
        const Outcome outcome = train(model, moe, choice, when);
        EXPECT_EQ(outcome.loss, expected.loss);
        EXPECT_EQ(outcome.loads, expected.loads);
        for (size_t i = 0; i < expected.gradients.size(); ++i)
          EXPECT_TRUE(at::equal(outcome.gradients[i], expected.gradients[i])) << "gradient " << i;
      }
  }
}

// Embedding, a dense block, two of experts, head.
TEST(Experts, TellWhatTheyHaveCounted) {
  const Outcome outcome = train(model_of(config::Router::kSoftmaxAfterTopk), {}, Recompute::kNone, WeightGradients::kInB);
  ASSERT_EQ(outcome.loads.size(), 5u);
  for (const size_t none : {size_t{0}, size_t{1}, size_t{4}}) EXPECT_TRUE(outcome.loads[none].empty()) << none;
  for (const size_t layer : {size_t{2}, size_t{3}}) {
    const std::vector<double>& loads = outcome.loads[layer];
    ASSERT_EQ(loads.size(), 6u + static_cast<size_t>(nn::kLoadExtras));
    double routed = 0;
    for (size_t expert = 0; expert < 6; ++expert) routed += loads[expert];
    EXPECT_EQ(routed, 2 * 2 * 3 * 9) << layer;  // experts of a token, microbatches, tokens
    EXPECT_EQ(loads[6], 0);
    EXPECT_GT(loads[7], 0);
  }
}

// Forward and backward of each layer in parts, where it has some: their number.
int run_in_parts(nn::DividedPass* pass, at::Tensor& tensor) {
  if (pass == nullptr) return 0;
  pass->leave();
  pass->run_experts();
  pass->leave();
  pass->arrive();
  tensor = pass->finish();
  return 1;
}

Outcome train_in_parts(const arch::ModelConfig& model, const config::MoeSection& moe) {
  ModelParameters parameters(model, 1);
  fill_biases(parameters);
  const auto layers = build_layers(model, parameters, {.seed = 1234, .moe = moe});
  Outcome outcome;
  int divided = 0;
  for (int64_t i = 0; i < 2; ++i) {
    nn::Microbatch microbatch = testing::random_microbatch(model, 3, 9, 5, cat("microbatch ", i));
    microbatch.first_sample = i * 3;
    microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    std::vector<std::unique_ptr<nn::Saved>> saved(layers.size());
    at::Tensor x, dy;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const auto pass = layers[layer]->begin_forward(x, microbatch, &saved[layer]);
      divided += run_in_parts(pass.get(), x);
      if (!pass) x = layers[layer]->forward(x, microbatch, &saved[layer]);
    }
    for (size_t layer = layers.size(); layer-- > 0;) {
      const auto pass = layers[layer]->begin_backward_input(dy, *saved[layer]);
      divided += run_in_parts(pass.get(), dy);
      if (!pass) dy = layers[layer]->backward_input(dy, *saved[layer]);
      layers[layer]->backward_weight(*saved[layer]);
    }
    outcome.loss += saved.back()->loss.item<double>();
  }
  EXPECT_EQ(divided, 2 * 2 * 2) << "two of three blocks, there and back";
  for (const auto& layer : layers) outcome.loads.push_back(layer->take_loads());
  for (const arch::ParamSpec& spec : parameters.table()) outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

TEST(Experts, PartsChangeNoBit) {
  using config::Router;
  std::vector<arch::ModelConfig> models = {biased_model(), biased_model(0.1)};
  for (const Router router : {Router::kSoftmaxAfterTopk, Router::kSigmoid, Router::kExpertChoice})
    for (const double dropout : {0.0, 0.1}) models.push_back(model_of(router, dropout));
  for (const arch::ModelConfig& model : models) {
    SCOPED_TRACE(cat(static_cast<int>(model.experts.router), " dropout ", model.dropout, model.experts.biases ? " biased" : ""));
    const config::MoeSection moe{.z_coefficient = 0.01};
    const Outcome expected = train(model, moe, Recompute::kNone, WeightGradients::kInB), outcome = train_in_parts(model, moe);
    EXPECT_EQ(outcome.loss, expected.loss);
    EXPECT_EQ(outcome.loads, expected.loads);
    for (size_t i = 0; i < expected.gradients.size(); ++i)
      EXPECT_TRUE(at::equal(outcome.gradients[i], expected.gradients[i])) << "gradient " << i;
  }
}

TEST(Experts, TokenByTokenGivesTheLogitsOfTheWholeText) {
  for (const arch::ModelConfig& model : {model_of(config::Router::kSoftmaxAfterTopk), model_of(config::Router::kSigmoid), biased_model()}) {
    ModelParameters parameters(model, 1);
    fill_biases(parameters);
    Decoder decoder(model, parameters);
    const at::Tensor tokens = testing::random_microbatch(model, 2, 11).tokens;
    const std::vector<int64_t> slots = {1, 0};
    KvCache whole = decoder.new_cache(2, 11), step_by_step = decoder.new_cache(2, 11);
    const at::Tensor expected = decoder.append(tokens, slots, whole);
    at::Tensor logits = decoder.append(tokens.narrow(1, 0, 4), slots, step_by_step);
    for (int64_t s = 4; s < 11; ++s) logits = decoder.append(tokens.narrow(1, s, 1), slots, step_by_step);
    EXPECT_TRUE(at::allclose(logits, expected, /*rtol=*/1e-4, /*atol=*/1e-6));
  }
}

TEST(Experts, ThatChooseTheirTokensDoNotGenerate) {
  const arch::ModelConfig model = model_of(config::Router::kExpertChoice);
  ModelParameters parameters(model, 1);
  Decoder decoder(model, parameters);
  KvCache cache = decoder.new_cache(1, 8);
  EXPECT_THROW(decoder.append(testing::random_microbatch(model, 1, 4).tokens, std::vector<int64_t>{0}, cache), ConfigError);
}

}  // namespace
}  // namespace lockstep::model
