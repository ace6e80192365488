// Experts of sequences whose tokens lie on several ranks of cp: who tells whom scores, and how many rows a rank has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

ModelConfig model_of(config::Router router = config::Router::kSoftmaxAfterTopk) {
  ModelConfig model{.family = Family::kMixtral, .layers = 4, .hidden = 24, .heads = 6, .kv_heads = 2, .head_size = 4, .ffn = 40,
                    .vocab_size = 53, .max_seq_len = 64, .tied = false};
  model.experts = {.count = 8, .per_token = 2, .ffn = 20, .router = router};
  return model;
}

// Of 3 sequences of 8 tokens half is here, 12 rows, of which each rank of tp routes 6. Who needs no scores of others tells none to cp either.
TEST(ExpertsOverCp, TellEachOtherScores) {
  CostInput input{.batch = 3, .seq_len = 8, .tensor = {.size = 2}};
  input.context = {.ranks = 2};
  const auto scores = [&] {
    std::vector<std::string> found;
    for (const LayerCall& call : describe_layer(model_of(), layer_spec(model_of(), 3), input).calls) {
      if (call.part != "experts.scores") continue;
      EXPECT_EQ(call.collective, Collective::kAllGather);
      found.push_back(cat(call.numel * call.element_size, call.over == CallGroup::kContext ? " cp" : " tp"));
    }
    return found;
  };
  EXPECT_THAT(scores(), ElementsAre(cat(4 * 12 * 8, " tp"), cat(4 * 24 * 8, " cp")));
  input.moe.scope = config::MoeScope::kLastStep;
  EXPECT_THAT(scores(), ElementsAre());
  input.moe.capacity_factor = 1;
  EXPECT_THAT(scores(), ElementsAre(cat(4 * 12 * 8, " tp"), cat(4 * 24 * 8, " cp")));
  input.tensor = {};
  EXPECT_THAT(scores(), ElementsAre(cat(4 * 24 * 8, " cp")));
  input.context = {};
  EXPECT_THAT(scores(), ElementsAre());
}

// 2 of 8 tokens of each of 3 sequences are here; an expert's capacity is that of 8, and may all be of these.
TEST(ExpertsOverCp, KeepTheCapacityOfWholeSequences) {
  CostInput input{.batch = 3, .seq_len = 8};
  input.context = {.ranks = 4};
  input.tensor.experts = {.ep = 4};
  input.moe.static_buffers = true;
  EXPECT_EQ(ExpertRows(model_of(), input).here, 6);
  EXPECT_EQ(ExpertRows(model_of(), input).own, 6);
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 6);
  input.moe.capacity_factor = 1;  // 2 tokens of a sequence
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 6);
  input.moe.capacity_factor = 0.5;  // 1
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 3);
  input.moe.static_buffers = false;
  EXPECT_EQ(ExpertRows(model_of(), input).received, 4 * 2 * 3);
  input.moe.capacity_factor = 1;
  EXPECT_EQ(ExpertRows(model_of(config::Router::kExpertChoice), input).balanced, 2 * 6);
  input.tensor.size = 2;  // rows 0 to 2: of two sequences of 2 rows here
  EXPECT_EQ(ExpertRows(model_of(), input).own, 3);
  input.moe.static_buffers = true, input.moe.capacity_factor = 0.5;
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 2);
}

}  // namespace
}  // namespace lockstep::arch
