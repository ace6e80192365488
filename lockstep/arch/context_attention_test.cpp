// What attention costs where ranks of cp hold the sequences in parts, or a window bounds what is seen: in closed form.
#include "lockstep/arch/context_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using config::ContextKind;
using config::ContextSplit;

constexpr int64_t kBatch = 2, kSeq = 192, kHeads = 12, kKeys = 4, kWidth = 4;

ModelConfig model_of(int64_t window = 0) {
  ModelConfig model = resolve_model({.preset = "llama-test"});
  model.sliding_window = window;
  return model;
}

CostInput input_of(const ContextShard& context) { return {.batch = kBatch, .seq_len = kSeq, .context = context}; }

LayerCost block_cost(const ContextShard& context) { return layer_cost(model_of(), layer_spec(model_of(), 1), input_of(context)); }

Product product_of(const ModelConfig& model, const ContextShard& context, std::string_view name) {
  const LayerDescription block = describe_layer(model, layer_spec(model, 1), input_of(context));
  const auto found = std::ranges::find(block.products, name, &Product::name);
  EXPECT_NE(found, block.products.end());
  return *found;
}

// The pairs of tokens [begin, begin + count) and what they see, by token, rounded down.
int64_t keys_seen(int64_t begin, int64_t count, int64_t window) {
  int64_t pairs = 0;
  for (int64_t at = begin; at < begin + count; ++at) pairs += window > 0 ? std::min(at + 1, window) : at + 1;
  return pairs / count;
}

TEST(ContextCost, IsAShareOfTheWhole) {
  const LayerCost whole = block_cost({});
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather, ContextKind::kAllToAll})
    for (const int ranks : {2, 4}) {
      const LayerCost part = block_cost({.ranks = ranks, .kind = kind});
      EXPECT_DOUBLE_EQ(part.forward_flops * ranks, whole.forward_flops);
      EXPECT_DOUBLE_EQ(part.backward_flops * ranks, whole.backward_flops);
      EXPECT_EQ(part.output * ranks, whole.output);
    }
}

// Beside its part of all that is kept: the heads here, of the tokens of all ranks that exchanged them.
TEST(ContextCost, KeepsAShareAndExchangedHeads) {
  const LayerCost whole = block_cost({});
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(block_cost({.ranks = ranks}).kept * ranks, whole.kept);
    EXPECT_EQ(block_cost({.ranks = ranks, .kind = ContextKind::kAllGather}).kept * ranks, whole.kept);
    const int64_t tokens = kBatch * kSeq, queries = kHeads / ranks, keys = kKeys / ranks;
    const int64_t heads = 4 * tokens * (queries * kWidth + 2 * keys * kWidth), output = 4 * tokens * queries * kWidth;
    EXPECT_EQ(block_cost({.ranks = ranks, .kind = ContextKind::kAllToAll}).kept, whole.kept / ranks + heads + output);
  }
}

TEST(ContextCost, CountsTheLastRankOfAContiguousSplit) {
  for (const int ranks : {2, 3, 4}) {
    const int64_t here = kSeq / ranks;
    const Product last = product_of(model_of(), {.ranks = ranks, .split = ContextSplit::kContiguous}, "scores");
    EXPECT_EQ(last.m, here);
    EXPECT_EQ(last.n, keys_seen(kSeq - here, here, 0));
    EXPECT_EQ(last.count, kBatch * kHeads);
    const Product balanced = product_of(model_of(), {.ranks = ranks}, "scores");
    EXPECT_EQ(balanced.m, here);
    EXPECT_EQ(balanced.n, keys_seen(0, kSeq, 0));
  }
}

TEST(ContextCost, OfTwoDHasTheHeadsOfOneAndTheTokensOfAnother) {
  const Product scores = product_of(model_of(), {.ranks = 4, .kind = ContextKind::k2d, .inner = 2}, "scores");
  EXPECT_EQ(scores.m, kSeq / 2);
  EXPECT_EQ(scores.count, kBatch * kHeads / 2);
}

TEST(ContextCost, CountsWhatAWindowLetsSee) {
  for (const int64_t window : {1, 7, 100, 191, 192, 500}) {
    EXPECT_EQ(product_of(model_of(window), {}, "scores").n, keys_seen(0, kSeq, window)) << window;
    const ContextShard last{.ranks = 2, .split = ContextSplit::kContiguous};
    EXPECT_EQ(product_of(model_of(window), last, "mix").n, keys_seen(kSeq / 2, kSeq / 2, window)) << window;
  }
}

// 6 x the products of scores and of values, of as many keys as a token sees on average; half of a triangle is counted as such.
TEST(ContextCost, ModelFlopsStopAtTheWindow) {
  const auto flops = [](int64_t window) { return model_flops_per_token(model_of(window), kSeq); };
  const double layers = 3, of_key = 6 * 2 * kHeads * kWidth;
  EXPECT_DOUBLE_EQ(flops(kSeq), flops(0));
  EXPECT_DOUBLE_EQ(flops(1000), flops(0));
  const double window = 48, seen = window - window * window / (2.0 * kSeq);
  EXPECT_NEAR(flops(0) - flops(48), layers * of_key * (kSeq / 2.0 - seen), 1e-6 * flops(0));
}

// Over the ranks of cp the fullest moment falls, if not to a share: two blocks of keys are there at a time.
TEST(ContextCost, WorkspaceFallsInARing) {
  const auto most = [](int ranks, bool backward) {
    const LayerCost cost = block_cost({.ranks = ranks});
    return cost.kept + cost.output + (backward ? cost.backward_workspace : cost.forward_workspace);
  };
  for (const bool backward : {false, true})
    for (const int ranks : {2, 4, 8}) EXPECT_LT(most(ranks, backward), most(ranks / 2, backward)) << ranks;
}

}  // namespace
}  // namespace lockstep::arch
