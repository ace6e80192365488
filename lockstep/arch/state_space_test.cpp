// State spaces as a kind of branch: parameters and how tp cuts them, calls over tp and cp, FLOPs, what is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/params.h"
#include "lockstep/arch/state_space_branch.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;

// Of 8 heads 4 wide, 6 numbers of state, 4 tokens of convolution.
ModelConfig test_model(int64_t groups, int64_t norm_groups) {
  ModelConfig model{.family = Family::kLlama, .layers = 2, .hidden = 20, .heads = 2, .kv_heads = 2, .head_size = 10, .ffn = 32, .vocab_size = 64,
                    .max_seq_len = 64};
  model.blocks = {{{.kind = std::string(kStateSpace), .name = "ssm"}}};
  model.state_space = {.heads = 8, .head_size = 4, .groups = groups, .state = 6, .chunk = 16, .norm_groups = norm_groups};
  return model;
}

std::vector<std::string> rows_of(const ModelConfig& model, const TensorShard& shard) {
  std::vector<std::string> rows;
  for (const ParamSpec& spec : param_table(model, shard, {1})) {
    if (!spec.name.starts_with("blocks.0.ssm.")) continue;
    rows.push_back(cat(spec.name.substr(13), " ", spec.local_shape[0], spec.local_shape.size() > 1 ? cat(" x ", spec.local_shape[1]) : "", " from ",
                       spec.local_offset[0], spec.partial ? " partial" : "", spec.fuse.empty() ? "" : cat(" in ", spec.fuse.substr(13)),
                       spec.fp32 ? " fp32" : ""));
  }
  return rows;
}

TEST(StateSpaceKind, HeadsAndGroupsAreCutOverTp) {
  EXPECT_THAT(rows_of(test_model(4, 2), {.size = 2, .rank = 1}),
              ElementsAre("z.weight 16 x 20 from 16 in in.weight", "x.weight 16 x 20 from 16 in in.weight", "b.weight 12 x 20 from 12 in in.weight",
                          "c.weight 12 x 20 from 12 in in.weight", "dt.weight 4 x 20 from 4 in in.weight", "conv_x.weight 16 x 4 from 16 in conv.weight",
                          "conv_b.weight 12 x 4 from 12 in conv.weight", "conv_c.weight 12 x 4 from 12 in conv.weight", "conv_x.bias 16 from 16 in conv.bias",
                          "conv_b.bias 12 from 12 in conv.bias", "conv_c.bias 12 from 12 in conv.bias", "dt_bias.weight 8 from 0 partial fp32",
                          "a_log.weight 8 from 0 partial fp32", "d.weight 8 from 0 partial fp32", "norm.weight 16 from 16", "out.weight 20 x 16 from 0"));
}

// Fewer groups than ranks are whole on each.
TEST(StateSpaceKind, GroupsAreSharedWhereThereAreFewerThanRanks) {
  const std::vector<std::string> rows = rows_of(test_model(2, 1), {.size = 4, .rank = 3});
  EXPECT_EQ(rows[2], "b.weight 12 x 20 from 0 partial in in.weight");
  EXPECT_EQ(rows[6], "conv_b.weight 12 x 4 from 0 partial in conv.weight");
  const StateSpacePart part(test_model(2, 1).state_space, 4, 3);
  EXPECT_EQ(part.heads, 2);
  EXPECT_EQ(part.groups, 2);
  EXPECT_EQ(part.first_group, 1);
  EXPECT_EQ(part.read_groups, 1);
  EXPECT_TRUE(part.norm_is_cut);
  EXPECT_EQ(part.projected(), 8 + 8 + 2 * 12 + 2);
  const StateSpacePart cut(test_model(4, 4).state_space, 2, 1);
  EXPECT_EQ(cut.groups, 2);
  EXPECT_EQ(cut.first_group, 0);
  EXPECT_EQ(cut.read_groups, 2);
  EXPECT_EQ(cut.norm_groups, 2);
  EXPECT_FALSE(cut.norm_is_cut);
}

std::vector<std::string> calls_of(const ModelConfig& model, const CostInput& input) {
  std::vector<std::string> calls;
  for (const LayerCall& call : describe_layer(model, layer_spec(model, 1), input).calls)
    calls.push_back(cat(call.part, call.phase == CallPhase::kForward ? "" : call.phase == CallPhase::kGather ? " again" : " back", " ", call.numel,
                        " of ", call.element_size, call.over == CallGroup::kContext ? " over cp" : ""));
  return calls;
}

TEST(StateSpaceKind, CallsOverTp) {
  const CostInput input{.batch = 2, .seq_len = 8, .tensor = {.size = 2}};
  EXPECT_THAT(calls_of(test_model(2, 2), input), ElementsAre("ssm.out 320 of 4", "ssm.in back 320 of 4"));
  EXPECT_THAT(calls_of(test_model(2, 1), input),
              ElementsAre("ssm.norm 16 of 4", "ssm.out 320 of 4", "ssm.norm back 16 of 4", "ssm.in back 320 of 4"));
  CostInput sequence = input;
  sequence.tensor.sequence_parallel = true;
  EXPECT_THAT(calls_of(test_model(2, 2), sequence), ElementsAre("ssm.in 320 of 4", "ssm.out 320 of 4", "ssm.out back 320 of 4", "ssm.in again 320 of 4",
                                                                "ssm.in back 320 of 4"));
}

// Of every piece 3 columns of x | B | C, and for each head a state and its decay; zigzag has two pieces a rank, contiguous one.
TEST(StateSpaceKind, CallsOverCp) {
  CostInput input{.batch = 3, .seq_len = 32, .element_size = 2, .context = {.ranks = 2}, .places = true};
  const int64_t columns = 3 * 3 * (32 + 2 * 2 * 6), states = 3 * 8 * 4 * 6;
  for (const int64_t pieces : {4, 2}) {
    input.context.split = pieces == 4 ? config::ContextSplit::kZigzag : config::ContextSplit::kContiguous;
    EXPECT_THAT(calls_of(test_model(2, 1), input),
                ElementsAre(cat("ssm.columns ", pieces * columns, " of 2 over cp"), cat("ssm.states ", pieces * (states + 3 * 8), " of 4 over cp"),
                            cat("ssm.states back ", pieces * states, " of 4 over cp"), cat("ssm.columns back ", pieces * columns, " of 4 over cp")));
  }
}

// By hand: 6 for every weight of a product, and for every token of a block of 16 half of the block's others by B and C of 2 groups and by x of 8
// heads, its part of the state, and what it takes of it. The same for every length.
TEST(StateSpaceKind, FlopsAreLinear) {
  const ModelConfig model = test_model(2, 1);
  const double weights = 20 * (2 * 32 + 2 * 12 + 8) + 32 * 20, scan = 8 * (2 * 6 + 8 * 4) + 2 * 8 * 4 * 6;
  for (const int64_t length : {16, 64, 4096}) EXPECT_EQ(model_flops_per_token(model, length), 6 * (2 * (weights + scan) + 20 * 64)) << length;
}

TEST(StateSpaceKind, KeepsStatesAndNotTheConvolution) {
  const ModelConfig model = test_model(2, 2);
  std::vector<std::string> all, selective;
  for (const Value& value : block_kept_parts(model, {.batch = 2, .seq_len = 24})) {
    all.push_back(cat(value.kept.as, " ", value.bytes));
    if (value.kept_by(Recompute::kSelective)) selective.emplace_back(value.kept.as);
  }
  const int64_t tokens = 48;
  EXPECT_THAT(all, ElementsAre(cat("input ", tokens * 20 * 4), cat("norm statistics ", tokens * (1 + 2) * 4), cat("norm outputs ", tokens * 20 * 4),
                               cat("z, x, B, C, dt ", tokens * (2 * 32 + 2 * 12 + 8) * 4), cat("x, B, C behind the convolution ", tokens * (32 + 2 * 12) * 4),
                               cat("step sizes ", tokens * 8 * 4), cat("states before chunks ", 2 * 2 * 8 * 4 * 6 * 4), cat("scan output ", tokens * 32 * 4),
                               cat("gated norm output ", tokens * 32 * 4)));
  EXPECT_THAT(selective, ElementsAre("input", "norm statistics", "z, x, B, C, dt", "states before chunks", "scan output"));
}

}  // namespace
}  // namespace lockstep::arch
