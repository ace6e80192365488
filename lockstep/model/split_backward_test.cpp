// I and W apart, with other microbatches in between as zero-bubble schedules run them, leave the bits of B: what one
// microbatch keeps is its own.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/model/model.h"
#include "support/blocks.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/run_ranks.h"

namespace lockstep::model {
namespace {

using arch::Family;
using arch::Recompute;
using testing::KeptLayer;
using testing::ModelParameters;

struct Case {
  Family family = Family::kGpt2;
  at::ScalarType dtype = at::kFloat;
  double dropout = 0;
  int64_t batch = 2;
  int64_t seq = 7;
  std::vector<arch::BlockSpec> blocks{};
};

arch::ModelConfig model_of(const Case& c) {
  arch::ModelConfig model = testing::with_blocks(testing::few_blocks(c.family, 2, c.dropout), c.blocks);
  model.tied = false;  // else the head's I and the embedding's W add to one buffer in turns
  return model;
}

std::string name(const Case& c, Recompute choice) {
  return cat(arch::family_name(c.family), " ", c.dtype, " dropout ", c.dropout, " S ", c.seq, " recompute ",
             static_cast<int>(choice));
}

constexpr int kMicrobatches = 3;

// The layers, and what is alive between their actions.
class Step {
 public:
  Step(const Case& c, const std::vector<std::unique_ptr<nn::Layer>>& layers, Recompute choice)
      : layers_(layers), choice_(choice) {
    for (int m = 0; m < kMicrobatches; ++m) {
      microbatches_.push_back(testing::random_microbatch(model_of(c), c.batch, c.seq, 5, cat("microbatch ", m)));
      microbatches_.back().step = 4;
      microbatches_.back().first_sample = m * c.batch;
    }
  }

  void forward(int m) {
    at::Tensor x;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool block = i > 0 && i + 1 < layers_.size();
      kept(m).emplace_back(*layers_[i], block ? choice_ : Recompute::kNone);
      x = kept(m).back().forward(x, microbatch(m));
    }
  }
  void backward(int m) {
    walk(m, [](KeptLayer& layer, const at::Tensor& dy) { return layer.layer().backward(dy, layer.saved()); });
    kept(m).clear();
  }
  void backward_input(int m) {
    walk(m, [](KeptLayer& layer, const at::Tensor& dy) { return layer.layer().backward_input(dy, layer.saved()); });
  }
  void backward_weight(int m) {
    for (size_t i = layers_.size(); i-- > 0;) kept(m)[i].layer().backward_weight(kept(m)[i].saved());
    kept(m).clear();
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  std::vector<KeptLayer>& kept(int m) { return kept_[static_cast<size_t>(m)]; }
  const nn::Microbatch& microbatch(int m) { return microbatches_[static_cast<size_t>(m)]; }
  template <typename Backward>
  void walk(int m, Backward run) {
    at::Tensor dy;
    for (size_t i = layers_.size(); i-- > 0;) {
      kept(m)[i].recompute(microbatch(m));
      dy = run(kept(m)[i], dy);
    }
    losses_[static_cast<size_t>(m)] = kept(m).back().saved().loss.item<double>();
  }

  const std::vector<std::unique_ptr<nn::Layer>>& layers_;
  Recompute choice_;
  std::vector<nn::Microbatch> microbatches_;
  std::vector<std::vector<KeptLayer>> kept_{kMicrobatches};
  std::vector<double> losses_ = std::vector<double>(kMicrobatches);
};

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  // in the order of the table
};

Outcome train(const Case& c, Recompute choice, bool apart, parallel::TensorGroup* group) {
  const arch::ModelConfig model = model_of(c);
  const arch::TensorShard shard = group ? arch::TensorShard{.size = group->size(), .rank = group->rank(), .sequence_parallel = group->sequence_parallel()}
                                        : arch::TensorShard{};
  ModelParameters parameters(model, 1, c.dtype, shard);
  const auto layers = build_layers(model, parameters, {.seed = 1234, .tensor = group});
  Step step(c, layers, choice);
  if (apart) {
    step.forward(0), step.forward(1);
    step.backward_input(0);
    step.forward(2);
    step.backward_input(1), step.backward_weight(0), step.backward_input(2);
    step.backward_weight(1), step.backward_weight(2);
  } else {
    for (int m = 0; m < kMicrobatches; ++m) step.forward(m), step.backward(m);
  }
  Outcome outcome{.losses = step.losses(), .gradients = {}};
  for (const arch::ParamSpec& spec : parameters.table())
    outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

void expect_same_bits(const Case& c, Recompute choice, parallel::TensorGroup* group) {
  SCOPED_TRACE(name(c, choice));
  const Outcome expected = train(c, choice, /*apart=*/false, group), actual = train(c, choice, /*apart=*/true, group);
  EXPECT_EQ(actual.losses, expected.losses);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
    EXPECT_GT(expected.gradients[i].abs().max().item<double>(), 0) << "gradient " << i;
  }
}

constexpr Recompute kChoices[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};

TEST(SplitBackward, HasTheBitsOfB) {
  for (const Case& c : {Case{}, Case{.dropout = 0.1}, Case{.dtype = at::kBFloat16, .dropout = 0.1, .seq = 65},
                        Case{.family = Family::kLlama}, Case{.family = Family::kLlama, .dropout = 0.2, .batch = 1, .seq = 100},
                        Case{.family = Family::kQwen2, .dropout = 0.1}, Case{.family = Family::kQwen3, .dropout = 0.1},
                        Case{.family = Family::kQwen3, .dtype = at::kBFloat16, .seq = 65}, Case{.batch = 1, .seq = 2}})
    for (const Recompute choice : kChoices) expect_same_bits(c, choice, nullptr);
}

TEST(SplitBackward, HasTheBitsOfBInOtherBlocks) {
  for (const auto& blocks : testing::other_blocks())
    for (const Recompute choice : kChoices) expect_same_bits({.family = Family::kLlama, .dropout = 0.1, .blocks = blocks}, choice, nullptr);
}

TEST(SplitBackward, HasTheBitsOfBOverTensorParallelRanks) {
  for (const auto& [sequence, overlap] : {std::pair{true, true}, {true, false}, {false, true}})
    testing::run_ranks(2, [sequence = sequence, overlap = overlap](comm::World& world) {
      const auto communicator = world.communicator({0, 1}, "tp");
      parallel::TensorGroup group(*communicator, {.sequence_parallel = sequence, .overlap = overlap});
      SCOPED_TRACE(cat(sequence ? "sequence parallel" : "whole rows", overlap ? ", overlap" : ""));
      std::vector<Case> cases = {{}, {.family = Family::kLlama, .dropout = 0.1},
                                 {.family = Family::kQwen3, .dtype = at::kBFloat16, .batch = 1}};
      for (const auto& blocks : testing::other_blocks()) cases.push_back({.family = Family::kLlama, .blocks = blocks});
      for (const Case& c : cases)
        for (const Recompute choice : kChoices) expect_same_bits(c, choice, &group);
    });
}

}  // namespace
}  // namespace lockstep::model
