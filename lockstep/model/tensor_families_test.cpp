// Models of further families cut over tp against the same on one rank: losses, and the gradients of all pieces put together.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/model/model.h"
#include "lockstep/model/test_families.h"
#include "support/model_parameters.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using arch::Family;
using testing::ModelParameters;

constexpr uint64_t kSeed = 1234;

// Two key heads: with 4 ranks two of them have the same.
arch::ModelConfig base(Family family) {
  return {.family = family, .layers = 2, .hidden = 24, .heads = 8, .kv_heads = 2, .head_size = 6, .ffn = 40, .vocab_size = 53, .max_seq_len = 16};
}

struct Outcome {
  double loss = 0;
  std::vector<arch::ParamSpec> table;
  std::vector<at::Tensor> gradients;
};

Outcome train(const arch::ModelConfig& model, parallel::TensorGroup* group) {
  const arch::TensorShard shard = group ? arch::TensorShard{.size = group->size(), .rank = group->rank(), .sequence_parallel = group->sequence_parallel()}
                                        : arch::TensorShard{};
  ModelParameters parameters(model, kSeed, at::kFloat, shard);
  const auto layers = build_layers(model, parameters, {.seed = kSeed, .tensor = group});
  Outcome outcome;
  outcome.loss = testing::forward_backward(layers, testing::random_microbatch(model, 3, 7, 4));
  outcome.table = parameters.table();
  for (const arch::ParamSpec& spec : outcome.table) outcome.gradients.push_back(parameters.parameter(spec.name).grad.clone());
  return outcome;
}

// Pieces at their places; what is Partial is a sum.
at::Tensor together(const std::vector<Outcome>& of_ranks, size_t row) {
  const at::Tensor whole = at::zeros(of_ranks[0].table[row].shape);
  for (const Outcome& outcome : of_ranks) {
    const arch::ParamSpec& spec = outcome.table[row];
    if (!spec.partial && spec.copy > 0) continue;
    at::Tensor piece = whole;
    for (size_t dim = 0; dim < spec.local_shape.size(); ++dim)
      piece = piece.narrow(static_cast<int64_t>(dim), spec.local_offset[dim], spec.local_shape[dim]);
    piece.add_(outcome.gradients[row]);
  }
  return whole;
}

void check(const arch::ModelConfig& model, int ranks, bool sequence) {
  SCOPED_TRACE(cat(arch::family_name(model.family), model.attention_sinks ? " with sinks" : "", " tp ", ranks, sequence ? " sequence parallel" : ""));
  const Outcome whole = train(model, nullptr);
  std::vector<Outcome> of_ranks(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](comm::World& world) {
    const auto communicator = world.all_ranks("tp");
    parallel::TensorGroup group(*communicator, {.sequence_parallel = sequence});
    of_ranks[static_cast<size_t>(world.rank())] = train(model, &group);
  });
  for (const Outcome& outcome : of_ranks) EXPECT_NEAR(outcome.loss, whole.loss, 1e-5 * whole.loss);
  for (size_t row = 0; row < whole.table.size(); ++row) {
    const std::string& name = whole.table[row].name;
    if (name.ends_with("attention.k.bias") && !model.attention_sinks) continue;  // of what is not turned it is zero but for rounding
    testing::expect_close(together(of_ranks, row), whole.gradients[row], name, 3e-5);
  }
}

TEST(TensorFamilies, AreThoseOfOneRank) {
  for (const arch::ModelConfig& model : testing::further_families(base))
    for (const int ranks : {2, 4})
      for (const bool sequence : {false, true}) check(model, ranks, sequence);
}

}  // namespace
}  // namespace lockstep::model
