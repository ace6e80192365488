// Models with state spaces: over tp what one rank computes; recomputation and split backward change no bit; generation is what the whole text
// gives, on one rank, over tp and over cp, and goes back to no shorter text.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/model/model.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using arch::Recompute;
using testing::expect_close;
using testing::ModelParameters;
using testing::WeightGradients;

struct Sizes {
  int64_t groups = 2, norm_groups = 1;
  bool projection_bias = false;
};

// A block of a state space alone, one with an MLP, and one with attention beside it; with multipliers.
arch::ModelConfig model_of(const Sizes& sizes, double dropout = 0) {
  arch::ModelConfig model = testing::few_blocks(arch::Family::kLlama, 3, dropout);
  model.tied = false;
  const arch::Branch ssm{.kind = std::string(arch::kStateSpace), .name = "ssm"}, mlp{.kind = "mlp", .name = "mlp"};
  arch::Branch attention{.kind = "attention", .name = "attention"};
  attention.beside = true, attention.norm_before = false;
  model.blocks = {{ssm}, {ssm, mlp}, {ssm, attention, mlp}};
  model.multipliers = {.attention_in = 1.2, .key = 0.7, .state_in = 1.3, .state_out = 0.6, .z = 0.8, .x = 1.1, .b = 0.9, .c = 1.2, .dt = 0.7};
  if (sizes.projection_bias) model.multipliers = {};
  model.state_space = {.heads = 12, .head_size = 3, .groups = sizes.groups, .state = 5, .chunk = 4, .norm_groups = sizes.norm_groups,
                       .projection_bias = sizes.projection_bias};
  return model;
}

struct Pass {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
};

// Of block 0, whose x and dy are these rows of a rank.
Pass pass(const arch::ModelConfig& model, ModelParameters& parameters, const nn::Microbatch& microbatch, const at::Tensor& x, const at::Tensor& dy,
          parallel::TensorGroup* group) {
  const auto layers = build_layers(model, parameters, {.tensor = group, .layers = {1}});
  std::unique_ptr<nn::Saved> saved;
  Pass outcome;
  outcome.y = layers[1]->forward(x, microbatch, &saved);
  outcome.dx = layers[1]->backward_input(dy, *saved);
  layers[1]->backward_weight(*saved);
  for (const arch::ParamSpec& spec : parameters.table())
    if (spec.layer == 1) outcome.gradients[spec.name] = parameters.parameter(spec.name).grad;
  return outcome;
}

void check_tp(const Sizes& sizes, int ranks, bool sequence_parallel) {
  SCOPED_TRACE(cat("groups ", sizes.groups, " norm groups ", sizes.norm_groups, " tp ", ranks, sequence_parallel ? " sequence parallel" : ""));
  arch::ModelConfig model = model_of(sizes);
  model.blocks = {model.blocks[0]};  // three ranks do not divide heads of attention
  const nn::Microbatch microbatch = testing::random_microbatch(model, 2, 11);
  const at::Tensor x = testing::random("x", {2, 11, model.hidden}), dy = testing::random("dy", x.sizes());
  ModelParameters whole_parameters(model, 1);
  const Pass whole = pass(model, whole_parameters, microbatch, x, dy, nullptr);
  std::vector<std::map<std::string, at::Tensor>> partial(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](comm::World& world) {
    const auto communicator = world.all_ranks("tp");
    parallel::TensorGroup group(*communicator, {.sequence_parallel = sequence_parallel});
    const arch::TensorShard shard{.size = ranks, .rank = world.rank(), .sequence_parallel = sequence_parallel};
    ModelParameters parameters(model, 1, at::kFloat, shard);
    const auto here = [&](const at::Tensor& all) {
      if (!sequence_parallel) return all;
      const mesh::Range rows = group.local_rows(22);
      return all.view({22, -1}).narrow(0, rows.begin, rows.size()).contiguous();
    };
    const Pass mine = pass(model, parameters, microbatch, here(x), here(dy), &group);
    expect_close(mine.y, here(whole.y), "y");
    expect_close(mine.dx, here(whole.dx), "dx", 2e-5);
    for (const arch::ParamSpec& spec : parameters.table()) {
      if (spec.layer != 1) continue;
      if (spec.partial) {
        partial[static_cast<size_t>(world.rank())][spec.name] = mine.gradients.at(spec.name);
        continue;
      }
      at::Tensor expected = whole.gradients.at(spec.name);
      for (size_t dim = 0; dim < spec.shape.size(); ++dim) expected = expected.narrow(static_cast<int64_t>(dim), spec.local_offset[dim], spec.local_shape[dim]);
      expect_close(mine.gradients.at(spec.name), expected, spec.name, 2e-5);
    }
  });
  for (const auto& [name, first] : partial[0]) {
    at::Tensor sum = first.clone();
    for (size_t rank = 1; rank < partial.size(); ++rank) sum.add_(partial[rank].at(name));
    expect_close(sum, whole.gradients.at(name), name, 2e-5);
  }
}

// Groups that are cut, one that all ranks share, and two of which each of four ranks reads one; norms inside a rank and over all, and none.
TEST(StateSpaceModels, TensorParallelIsOneRank) {
  for (const bool sequence_parallel : {false, true}) {
    for (const Sizes& sizes : {Sizes{}, Sizes{.groups = 1}, Sizes{.groups = 4, .norm_groups = 2}, Sizes{.norm_groups = 4, .projection_bias = true},
                               Sizes{.norm_groups = 0}})
      check_tp(sizes, 2, sequence_parallel);
    check_tp({.groups = 3, .norm_groups = 3}, 3, sequence_parallel);
    check_tp({.groups = 1}, 3, sequence_parallel);
    check_tp({}, 4, sequence_parallel);
    check_tp({.groups = 4, .norm_groups = 4}, 4, sequence_parallel);
  }
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
    outcome.loss += testing::forward_backward(layers, microbatch, std::vector<Recompute>(3, choice), when);
  }
  for (const arch::ParamSpec& spec : parameters.table()) outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

TEST(StateSpaceModels, RecomputationAndSplitBackwardChangeNoBit) {
  for (const double dropout : {0.0, 0.1}) {
    const arch::ModelConfig model = model_of({}, dropout);
    const Outcome expected = train(model, Recompute::kNone, WeightGradients::kInB);
    for (const at::Tensor& gradient : expected.gradients) EXPECT_GT(gradient.abs().max().item<double>(), 0);
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

// Prompts, single tokens, and a slot that begins anew.
std::vector<at::Tensor> texts_of(const arch::ModelConfig& model, Decoder& decoder) {
  const at::Tensor tokens = testing::random_microbatch(model, 2, 20).tokens;
  KvCache cache = decoder.new_cache(2, 20);
  std::vector<at::Tensor> logits;
  const std::vector<int64_t> both = {1, 0}, one = {0};
  logits.push_back(decoder.append(tokens.narrow(1, 0, 13), both, cache));
  for (int64_t s = 13; s < 18; ++s) logits.push_back(decoder.append(tokens.narrow(1, s, 1), both, cache));
  logits.push_back(decoder.append(tokens.narrow(1, 18, 2), both, cache));
  cache.truncate(0, 0);
  logits.push_back(decoder.append(tokens.narrow(0, 0, 1).narrow(1, 0, 16), one, cache));
  logits.push_back(decoder.append(tokens.narrow(0, 0, 1).narrow(1, 16, 1), one, cache));
  return logits;
}

TEST(StateSpaceModels, TokenByTokenGivesTheLogitsOfTheWholeText) {
  const arch::ModelConfig model = model_of({});
  ModelParameters parameters(model, 1);
  Decoder decoder(model, parameters);
  const at::Tensor tokens = testing::random_microbatch(model, 2, 20).tokens;
  const std::vector<at::Tensor> steps = texts_of(model, decoder);
  const std::vector<int64_t> slots = {1, 0};
  for (size_t i = 0; i < 7; ++i) {
    KvCache cache = decoder.new_cache(2, 20);
    const int64_t length = i < 6 ? 13 + static_cast<int64_t>(i) : 20;
    EXPECT_TRUE(at::allclose(steps[i], decoder.append(tokens.narrow(1, 0, length), slots, cache), /*rtol=*/1e-4, /*atol=*/1e-6)) << i;
  }
}

TEST(StateSpaceModels, RanksSayWhatOneRankSays) {
  const arch::ModelConfig model = model_of({});
  ModelParameters parameters(model, 1);
  Decoder alone(model, parameters);
  const std::vector<at::Tensor> expected = texts_of(model, alone);
  for (const auto& [tp, cp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{1, 3}, std::pair{2, 2}}) {
    SCOPED_TRACE(cat("tp ", tp, " cp ", cp));
    std::vector<std::vector<at::Tensor>> of_ranks(static_cast<size_t>(tp * cp));
    testing::run_ranks(tp * cp, [&, tp = tp, cp = cp](comm::World& world) {
      const int here = world.rank() % tp, part = world.rank() / tp;
      std::vector<int> of_tp, of_cp;
      for (int i = 0; i < tp; ++i) of_tp.push_back(part * tp + i);
      for (int i = 0; i < cp; ++i) of_cp.push_back(i * tp + here);
      const auto tensor_ranks = world.communicator(of_tp, "tp"), context_ranks = world.communicator(of_cp, "cp");
      parallel::TensorGroup tensor(*tensor_ranks, {});
      parallel::ContextGroup context(*context_ranks, {});
      ModelParameters own(model, 1, at::kFloat, {.size = tp, .rank = here});
      Decoder decoder(model, own, &tensor, nullptr, &context);
      of_ranks[static_cast<size_t>(world.rank())] = texts_of(model, decoder);
    });
    for (const std::vector<at::Tensor>& logits : of_ranks)
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(logits[i], expected[i], /*rtol=*/0, 1e-5)) << i;
        EXPECT_TRUE(at::equal(logits[i], of_ranks[0][i])) << i;
      }
  }
}

TEST(StateSpaceModels, AStateIsNotTakenBackToFewerTokens) {
  const arch::ModelConfig model = model_of({});
  ModelParameters parameters(model, 1);
  Decoder decoder(model, parameters);
  KvCache cache = decoder.new_cache(1, 20);
  const std::vector<int64_t> slots = {0};
  decoder.append(testing::random_microbatch(model, 1, 9).tokens, slots, cache);
  EXPECT_TRUE(cache.can_truncate(0, 9));
  EXPECT_TRUE(cache.can_truncate(0, 0));
  EXPECT_FALSE(cache.can_truncate(0, 8));
  EXPECT_THROW(cache.truncate(0, 8), InternalError);
  // In fp32 three states of 12 heads and of 3 columns, and of attention keys and values.
  const int64_t states = 12 * 3 * 5 + 3 * (36 + 2 * 2 * 5), heads = 2 * 2 * 20 * 6;
  EXPECT_EQ(cache.bytes(), 4 * (3 * states + heads));
}

}  // namespace
}  // namespace lockstep::model
