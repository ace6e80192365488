// Recomputation changes no bit: gradients with blocks that keep less, against those of blocks that keep all.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/model/model.h"
#include "lockstep/model/test_families.h"
#include "support/blocks.h"
#include "support/model_parameters.h"
#include "support/recompute.h"

namespace lockstep::model {
namespace {

using arch::Family;
using arch::Recompute;
using testing::ModelParameters;
using testing::WeightGradients;

struct Case {
  Family family = Family::kGpt2;
  at::ScalarType dtype = at::kFloat;
  double dropout = 0;
  int64_t batch = 3;
  int64_t seq = 7;
  std::vector<arch::BlockSpec> blocks{};
  int further = -1;  // of testing::further_families
};

arch::ModelConfig model_of(const Case& c) {
  const auto base = [&](Family family) { return testing::few_blocks(family, 3, c.dropout); };
  if (c.further >= 0) return testing::further_families(base)[static_cast<size_t>(c.further)];
  return testing::with_blocks(base(c.family), c.blocks);
}

using Choices = std::vector<Recompute>;

// Loss, and every gradient in the order of the table.
struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

Outcome train(const Case& c, const Choices& blocks, WeightGradients when) {
  const arch::ModelConfig model = model_of(c);
  ModelParameters parameters(model, 1, c.dtype);
  const auto layers = build_layers(model, parameters, {.seed = 1234});
  Outcome outcome;
  for (int64_t i = 0; i < 2; ++i) {  // gradients accumulate over two microbatches
    nn::Microbatch microbatch = testing::random_microbatch(model, c.batch, c.seq, 5, cat("microbatch ", i));
    microbatch.step = 4;
    microbatch.first_sample = i * c.batch;
    outcome.loss += testing::forward_backward(layers, microbatch, blocks, when);
  }
  for (const arch::ParamSpec& spec : parameters.table())
    outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

std::vector<Case> with_other_blocks(std::vector<Case> cases) {
  for (const auto& blocks : testing::other_blocks())
    for (const Family family : {Family::kGpt2, Family::kQwen3}) cases.push_back({.family = family, .dropout = 0.1, .blocks = blocks});
  for (int further = 0; further < 6; ++further)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) cases.push_back({.dtype = dtype, .dropout = 0.1, .further = further});
  return cases;
}

const std::vector<Case> kCases = with_other_blocks({
    {},
    {.dropout = 0.1},
    {.dtype = at::kBFloat16, .dropout = 0.1, .batch = 2, .seq = 65},
    {.family = Family::kLlama},
    {.family = Family::kLlama, .dropout = 0.2, .batch = 1, .seq = 100},
    {.family = Family::kLlama, .dtype = at::kBFloat16},
    {.family = Family::kQwen2, .dropout = 0.1},
    {.family = Family::kQwen3, .dropout = 0.1},
    {.family = Family::kQwen3, .dtype = at::kBFloat16, .batch = 2, .seq = 65},
    {.batch = 1, .seq = 1},
});

const std::vector<Choices> kChoices = {
    {Recompute::kSelective, Recompute::kSelective, Recompute::kSelective},
    {Recompute::kFull, Recompute::kFull, Recompute::kFull},
    {Recompute::kFull, Recompute::kNone, Recompute::kSelective},
};

TEST(Recompute, GradientsHaveTheSameBits) {
  for (const Case& c : kCases)
    for (const WeightGradients when : {WeightGradients::kInB, WeightGradients::kAfterAllInputs}) {
      const Outcome expected = train(c, {}, when);
      for (size_t choice = 0; choice < kChoices.size(); ++choice) {
        SCOPED_TRACE(cat(arch::family_name(model_of(c).family), " ", c.dtype, " dropout ", c.dropout, " S ", c.seq, " choice ",
                         choice, when == WeightGradients::kInB ? "" : " I and W apart"));
        const Outcome outcome = train(c, kChoices[choice], when);
        EXPECT_EQ(outcome.loss, expected.loss);
        for (size_t i = 0; i < expected.gradients.size(); ++i)
          EXPECT_TRUE(at::equal(outcome.gradients[i], expected.gradients[i])) << "gradient " << i;
      }
    }
}

}  // namespace
}  // namespace lockstep::model
