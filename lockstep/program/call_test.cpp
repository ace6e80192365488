#include "lockstep/program/call.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"

namespace lockstep::program {
namespace {

const arch::LayerSpec kEmbedding{.kind = arch::LayerKind::kEmbedding, .index = 0, .name = "embed"};
const arch::LayerSpec kBlock{.kind = arch::LayerKind::kBlock, .index = 4, .name = "blocks.3"};
const arch::LayerSpec kHead{.kind = arch::LayerKind::kHead, .index = 5, .name = "head"};

TEST(CallTest, EveryPurposeHasATextOfItsOwn) {
  std::set<std::string> texts;
  for (const PurposeText& each : kPurposes) {
    if (each.purpose == Purpose::kOther) continue;  // a name instead
    EXPECT_FALSE(each.text.empty());
    EXPECT_TRUE(texts.emplace(each.text).second) << each.text;
  }
}

TEST(CallTest, TextsByHand) {
  EXPECT_EQ(call_text(call_id(Purpose::kLoss)), "loss");
  EXPECT_EQ(call_text(call_of_bucket(Purpose::kReduceGrad, 3)), "reduce_grad bucket 3");
  EXPECT_EQ(call_text(call_of_bucket(Purpose::kReduceShard, 0)), "reduce_shard bucket 0");
  EXPECT_EQ(call_text(call_of_bucket(Purpose::kPush, 12)), "push bucket 12");
  EXPECT_EQ(call_text(call_of_bucket(Purpose::kPull, 1)), "pull bucket 1");
  EXPECT_EQ(call_text(call_of_stage(Purpose::kSendForward, 1)), "send_f stage 1");
  EXPECT_EQ(call_text(call_of_stage(Purpose::kRecvBackward, 0)), "recv_b stage 0");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kUnshard, kBlock)), "unshard blocks.3");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kUnshard, kEmbedding)), "unshard embed");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kLayer, kEmbedding).with(CallPhase::kForward)), "embed forward");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kLayer, kBlock).of_part("attention.qkv").with(CallPhase::kGather)),
            "blocks.3.attention.qkv gather");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kLayer, kBlock).of_part("mlp.gate_up").with(CallPhase::kBackward)),
            "blocks.3.mlp.gate_up backward");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kLayer, kHead).with(CallPhase::kSoftmax)), "head softmax");
  EXPECT_EQ(call_text(call_of_parameter("blocks.3.mlp.down.weight")), "whole blocks.3.mlp.down.weight");
  EXPECT_EQ(call_text(call_id(Purpose::kJobWords).with(CallPhase::kSize)), "how the ranks differ size");
  EXPECT_EQ(call_text(named_call("grad")), "grad");
  EXPECT_EQ(call_text(named_call("column").with(CallPhase::kForward)), "column forward");
  EXPECT_EQ(call_text({}), "");
}

TEST(CallTest, CallsOfOneKindShareATextWithoutNumbers) {
  EXPECT_EQ(call_text(call_of_bucket(Purpose::kReduceGrad, 3).of_every_owner()), "reduce_grad bucket");
  EXPECT_EQ(call_text(call_of_stage(Purpose::kSendForward, 1).of_every_owner()), "send_f stage");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kUnshard, kBlock).of_every_owner()), "unshard blocks.*");
  EXPECT_EQ(call_text(call_of_layer(Purpose::kLayer, kBlock).of_part("mlp.down").with(CallPhase::kForward).of_every_owner()),
            "blocks.*.mlp.down forward");
  EXPECT_EQ(call_of_layer(Purpose::kUnshard, kHead).of_every_owner(), call_of_layer(Purpose::kUnshard, kHead));
  EXPECT_EQ(call_of_bucket(Purpose::kPush, 3).of_every_owner(), call_of_bucket(Purpose::kPush, 4).of_every_owner());
}

TEST(CallTest, IdsDifferWhereTheirTextsDo) {
  const CallId bucket = call_of_bucket(Purpose::kReduceGrad, 0);
  EXPECT_NE(bucket, call_of_bucket(Purpose::kReduceGrad, 1));
  EXPECT_NE(bucket, call_of_bucket(Purpose::kPush, 0));
  EXPECT_LT(bucket, call_of_bucket(Purpose::kReduceGrad, 1));
  EXPECT_NE(named_call("a"), named_call("b"));
  EXPECT_THROW(call_of_bucket(Purpose::kReduceGrad, 1 << 15), InternalError);
}

}  // namespace
}  // namespace lockstep::program
