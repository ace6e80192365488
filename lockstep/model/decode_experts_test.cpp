// Generation with experts shared out over ranks: the logits of one rank, and each rank holds its own experts alone.
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/program/layout.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using testing::ModelParameters;

constexpr int64_t kLength = 8, kPrompt = 5;

// Two blocks, the first one dense.
arch::ModelConfig small_model(config::Router router) {
  arch::ModelConfig model = testing::few_blocks(arch::Family::kLlama, 2, /*dropout=*/0);
  model.heads = 8;
  model.kv_heads = 4;
  model.experts = {.count = 8, .per_token = 2, .ffn = 16, .shared = 1, .router = router, .dense_layers = {0}};
  return model;
}

// With every bias there is, and a clamp that some elements meet.
arch::ModelConfig biased_model() {
  arch::ModelConfig model = small_model(config::Router::kSoftmaxAfterTopk);
  model.experts.shared = 0;
  model.experts.logit_bias = model.experts.biases = true;
  model.experts.clamp = 0.05;
  return model;
}

// Biases begin as zeros. A rank's pieces of them are those of whole ones.
void fill_biases(ModelParameters& parameters) {
  for (const arch::ParamSpec& spec : parameters.table())
    if (spec.name.ends_with(".bias"))
      parameters.parameter(spec.name).value.copy_(testing::random(spec.name, spec.shape, 0.1).narrow(0, spec.local_offset[0], spec.local_shape[0]));
}

// A prompt, then token by token: a step has one row, so that all ranks but the first have none. Then another text beside it.
std::vector<at::Tensor> logits_of(const arch::ModelConfig& model, Decoder& decoder) {
  const at::Tensor tokens = testing::random_microbatch(model, 2, kLength).tokens, first = tokens.narrow(0, 0, 1);
  KvCache cache = decoder.new_cache(2, kLength);
  std::vector<at::Tensor> logits = {decoder.append(first.narrow(1, 0, kPrompt), std::vector<int64_t>{0}, cache)};
  for (int64_t s = kPrompt; s < kLength; ++s) logits.push_back(decoder.append(first.narrow(1, s, 1), std::vector<int64_t>{0}, cache));
  cache.truncate(0, 0);
  logits.push_back(decoder.append(tokens, std::vector<int64_t>{1, 0}, cache));
  return logits;
}

int64_t elements_of_experts(const ModelParameters& parameters) {
  int64_t sum = 0;
  for (const arch::ParamSpec& spec : parameters.table()) {
    if (spec.expert >= 0) sum += spec.local_numel();
  }
  return sum;
}

program::Layout layout_of(const arch::ModelConfig& model, int tp, int ep, int etp) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kTp] = tp;
  program::Layout layout{.model = model, .mesh = mesh::Mesh(degrees), .sequence_parallel = false};
  layout.ep = ep;
  layout.etp = etp;
  return layout;
}

TEST(DecodeExperts, SharedOutOverRanksGiveTheLogitsOfOneRank) {
  using config::Router;
  for (const arch::ModelConfig& model : {small_model(Router::kSoftmaxAfterTopk), small_model(Router::kSigmoid), biased_model()}) {
    ModelParameters all(model, 1);
    fill_biases(all);
    Decoder alone(model, all);
    const std::vector<at::Tensor> expected = logits_of(model, alone);
    struct Degrees {
      int tp, ep, etp;
    };
    for (const auto [tp, ep, etp] : {Degrees{2, 2, 1}, Degrees{2, 1, 2}, Degrees{4, 4, 1}, Degrees{4, 2, 1}, Degrees{4, 2, 2}}) {
      SCOPED_TRACE(cat("tp ", tp, ", ep ", ep, ", etp ", etp));
      const program::Layout layout = layout_of(model, tp, ep, etp);
      testing::run_ranks(tp, [&](comm::World& world) {
        ModelParameters parameters(model, 1, at::kFloat, layout.tensor_shard(world.rank()));
        fill_biases(parameters);
        EXPECT_EQ(elements_of_experts(parameters) * layout.ep * layout.etp, elements_of_experts(all));
        const auto ranks = world.all_ranks("tp");
        const auto sharing = world.communicator(layout.mesh.group(world.rank(), layout.expert_ranks()), "ep");
        parallel::TensorGroup tensor(*ranks, {});
        parallel::ExpertGroup experts(*sharing, layout.ep, layout.etp, {.overlap = false});
        Decoder decoder(model, parameters, &tensor, &experts);
        const std::vector<at::Tensor> logits = logits_of(model, decoder);
        ASSERT_EQ(logits.size(), expected.size());
        for (size_t i = 0; i < logits.size(); ++i)
          EXPECT_TRUE(at::allclose(logits[i], expected[i], /*rtol=*/1e-4, /*atol=*/1e-6)) << "step " << i << " rank " << world.rank();
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::model
