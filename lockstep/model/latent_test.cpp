// Models with latent attention: recomputation and split backward change no bit, and generation is
// what the whole text gives.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/model/model.h"
#include "support/model_parameters.h"
#include "support/recompute.h"

namespace lockstep::model {
namespace {

using arch::Recompute;
using testing::ModelParameters;
using testing::WeightGradients;

arch::ModelConfig model_of(double dropout = 0, bool interleaved = true) {
  arch::ModelConfig model = testing::few_blocks(arch::Family::kDeepseekV3, 3, dropout);
  model.kv_heads = model.heads;
  model.latent = {.q_rank = 10, .kv_rank = 12, .nope = 4, .rope = 6, .value = 8, .interleaved = interleaved};
  model.head_size = model.latent.head();
  model.experts = {.count = 8, .per_token = 2, .ffn = 16, .shared = 1, .router = config::Router::kSigmoid, .groups = 4, .top_groups = 2,
                   .routed_scale = 2.5, .router_bias = true, .dense_layers = {0}};
  model.rope_scaling = {.kind = arch::RopeScaling::Kind::kYarn, .factor = 4, .original_max_position_embeddings = 16, .mscale = 1,
                        .mscale_all_dim = 0.7};
  return model;
}

struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

Outcome train(const arch::ModelConfig& model, Recompute choice, WeightGradients when) {
  ModelParameters parameters(model, 1);
  const auto layers = build_layers(model, parameters, {.seed = 1234});
  Outcome outcome;
  for (int64_t i = 0; i < 2; ++i) {
    nn::Microbatch microbatch = testing::random_microbatch(model, 3, 9, 5, cat("microbatch ", i));
    microbatch.first_sample = i * 3;
    microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    outcome.loss += testing::forward_backward(layers, microbatch, std::vector<Recompute>(3, choice), when);
  }
  for (const arch::ParamSpec& spec : parameters.table()) outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

TEST(LatentAttention, RecomputationAndSplitBackwardChangeNoBit) {
  for (const double dropout : {0.0, 0.1}) {
    const arch::ModelConfig model = model_of(dropout);
    const Outcome expected = train(model, Recompute::kNone, WeightGradients::kInB);
    for (const Recompute choice : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
      for (const WeightGradients when : {WeightGradients::kInB, WeightGradients::kAfterAllInputs}) {
        SCOPED_TRACE(cat(" dropout ", dropout, " recompute ", static_cast<int>(choice)));
        const Outcome outcome = train(model, choice, when);
        EXPECT_EQ(outcome.loss, expected.loss);
        for (size_t i = 0; i < expected.gradients.size(); ++i)
          EXPECT_TRUE(at::equal(outcome.gradients[i], expected.gradients[i])) << "gradient " << i;
      }
  }
}

// The correction bias gets a gradient where moe.balance asks for it, and no other parameter is without one.
TEST(LatentAttention, EveryParameterButTheBiasIsTrained) {
  const arch::ModelConfig model = model_of();
  const Outcome outcome = train(model, Recompute::kNone, WeightGradients::kInB);
  const std::vector<arch::ParamSpec> table = arch::param_table(model);
  for (size_t i = 0; i < table.size(); ++i) {
    const bool is_zero = outcome.gradients[i].abs().max().item<double>() == 0;
    if (table[i].expert < 0) {
      EXPECT_EQ(is_zero, table[i].name.ends_with("router.bias")) << table[i].name;
    }
  }
}

TEST(LatentAttention, TokenByTokenGivesTheLogitsOfTheWholeText) {
  for (const bool interleaved : {true, false}) {
    const arch::ModelConfig model = model_of(0, interleaved);
    ModelParameters parameters(model, 1);
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

}  // namespace
}  // namespace lockstep::model
