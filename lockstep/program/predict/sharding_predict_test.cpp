// What sharded programs put on the links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/program/passes/passes.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::Pair;

struct Degrees {
  int replicate = 1, shard = 1, tp = 1;
};

Layout layout_of(int zero, Degrees degrees, int microbatches = 1, const std::string& preset = "llama-test") {
  mesh::PerAxis axes = mesh::PerAxis::ones();
  axes[mesh::Axis::kDpReplicate] = degrees.replicate;
  axes[mesh::Axis::kDpShard] = degrees.shard;
  axes[mesh::Axis::kTp] = degrees.tp;
  config::ModelSection section{.preset = preset};
  if (preset.ends_with("-test")) section.layers = 2;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(axes),
          .global_batch = 2 * degrees.replicate * degrees.shard * microbatches,
          .micro_batch = 2,
          .seq_len = 32,
          .bucket_bytes = 64 * 1024,
          .zero = zero};
}

int64_t unit_numel(const Layout& layout, int layer) {
  for (const arch::FlatUnit& unit : layout.flat_layout(0).units)
    if (unit.layer == layer) return unit.numel();
  return 0;
}

// Of all calls whose site begins so.
LedgerEntry total(const Layout& layout, const std::string& site, int rank = 0) {
  LedgerEntry sum;
  const Ledger ledger = predict_ledger(layout, make_program(layout), rank);
  for (const auto& [key, entry] : ledger.entries()) {
    if (!call_text(key.id).starts_with(site)) continue;
    sum.count += entry.count;
    sum.payload += entry.payload;
    for (const auto& [peer, bytes] : entry.sent) sum.sent[peer] += bytes;
  }
  return sum;
}

const LedgerEntry& entry(const Ledger& ledger, const CallId& id, Collective collective, const std::string& axis,
                         Algorithm algorithm) {
  return ledger.entries().at({.id = id, .collective = collective, .axis = axis, .algorithm = algorithm});
}

// A ring sends (S - 1) / S of a unit for every gather and every reduction.
TEST(ShardingPredictTest, CallsByHand) {
  const Layout layout = layout_of(3, {.shard = 4});
  const Ledger ledger = predict_ledger(layout, make_program(layout), 1);
  const int64_t block = unit_numel(layout, 2), head = unit_numel(layout, 3);
  const LedgerEntry& gather = entry(ledger, call_of_layer(Purpose::kUnshard, arch::layer_spec(layout.model, 2)), Collective::kAllGather, "dp", Algorithm::kRing);
  EXPECT_EQ(gather.count, 2);
  EXPECT_EQ(gather.payload, 2 * 4 * block);
  EXPECT_THAT(gather.sent, ElementsAre(Pair(2, 2 * 3 * block)));
  EXPECT_EQ(entry(ledger, call_of_layer(Purpose::kUnshard, arch::layer_spec(layout.model, 3)), Collective::kAllGather, "dp", Algorithm::kRing).count, 1);
  const LedgerEntry& reduce = entry(ledger, call_of_bucket(Purpose::kReduceGrad, 0), Collective::kReduceScatter, "dp", Algorithm::kRing);
  EXPECT_EQ(reduce.payload, 4 * head);
  EXPECT_THAT(reduce.sent, ElementsAre(Pair(2, 3 * head)));
  const LedgerEntry& norm = entry(ledger, call_id(Purpose::kNorm), Collective::kAllReduce, "dp", Algorithm::kDirect);
  EXPECT_EQ(norm.payload, 8);
}

// 2 P, (1 + M) P, 3 M P but for the head, gathered once a microbatch, and the embedding, whose backward reads nothing.
TEST(ShardingPredictTest, WhatMicrobatchesMultiply) {
  for (int shard : {2, 3, 4}) {
    for (int microbatches : {1, 3}) {
      const auto numel = [&](int zero) { return layout_of(zero, {.shard = shard}).flat_layout(0).numel; };
      const auto sent = [&](int zero, const char* site) {
        return total(layout_of(zero, {.shard = shard}, microbatches), site).sent_total() * shard / (shard - 1);
      };
      for (int zero : {1, 2}) EXPECT_EQ(sent(zero, "unshard"), 4 * numel(zero));
      EXPECT_EQ(sent(1, "reduce_grad"), 4 * numel(1));
      for (int zero : {2, 3}) EXPECT_EQ(sent(zero, "reduce_grad"), microbatches * 4 * numel(zero));
      const Layout layout = layout_of(3, {.shard = shard});
      const int64_t once = unit_numel(layout, 0) + unit_numel(layout, 3);
      EXPECT_EQ(sent(3, "unshard"), microbatches * 4 * (2 * numel(3) - once));
    }
  }
}

TEST(ShardingPredictTest, KeepingParametersSavesGathers) {
  Layout layout = layout_of(3, {.shard = 2}, 3);
  const auto gathers = [&] { return total(layout, "unshard blocks.1").count; };
  EXPECT_EQ(gathers(), 6);
  layout.reshard_after_microbatch = false;
  EXPECT_EQ(gathers(), 4);
  layout.reshard_after_forward = false;
  EXPECT_EQ(gathers(), 1);
  layout.reshard_after_microbatch = true;
  EXPECT_EQ(gathers(), 3);
}

// The head of a tied model reads the embedding: once more in forward, and until its own backward.
TEST(ShardingPredictTest, ATiedEmbeddingIsGatheredForTheHead) {
  EXPECT_EQ(total(layout_of(3, {.shard = 2}, 1, "gpt2-test"), "unshard embed").count, 2);
  EXPECT_EQ(total(layout_of(3, {.shard = 2}, 1, "llama-test"), "unshard embed").count, 1);
}

TEST(ShardingPredictTest, ParametersInTheComputePrecisionAndGradientsOnTheWire) {
  Layout layout = layout_of(3, {.shard = 3});
  const LedgerEntry gathered = total(layout, "unshard"), reduced = total(layout, "reduce_grad");
  layout.precision = config::Precision::kBf16;
  EXPECT_EQ(total(layout, "unshard").payload, gathered.payload / 2);
  EXPECT_EQ(total(layout, "reduce_grad").payload, reduced.payload);
  layout.reduce_precision = config::Precision::kBf16;
  const Ledger ledger = predict_ledger(layout, make_program(layout), 0);
  const int64_t head = unit_numel(layout, 3);
  const LedgerEntry& wire = entry(ledger, call_of_bucket(Purpose::kReduceGrad, 0), Collective::kAllToAll, "dp", Algorithm::kDirect);
  EXPECT_EQ(wire.payload, 2 * head);
  EXPECT_THAT(wire.sent, ElementsAre(Pair(1, 2 * head / 3), Pair(2, 2 * head / 3)));
}

TEST(ShardingPredictTest, HsdpSumsOneShardOverTheGroups) {
  for (int zero : {1, 2, 3}) {
    for (int microbatches : {1, 2}) {
      const Layout layout = layout_of(zero, {.replicate = 3, .shard = 2}, microbatches);
      const Ledger ledger = predict_ledger(layout, make_program(layout), 1);
      const LedgerEntry sum = total(layout, "reduce_shard", 1);
      EXPECT_EQ(sum.payload, 4 * layout.flat_layout(0).numel / 2) << "once a step";
      const int next = 3;  // rank 1 holds shard 1 of group 0; the next group has it on rank 3
      ASSERT_EQ(sum.sent.size(), 1u);
      EXPECT_EQ(sum.sent.begin()->first, next);
      for (const auto& [key, _] : ledger.entries()) {
        if (key.id.purpose == Purpose::kUnshard || key.id.purpose == Purpose::kReduceGrad) {
          EXPECT_EQ(key.axis, "dp_shard");
        }
        if (key.id.purpose == Purpose::kReduceShard) {
          EXPECT_EQ(key.axis, "dp_replicate");
        }
      }
    }
  }
}

// Every owner sums its shard of the partial gradients over tp: together as much as without shards.
TEST(ShardingPredictTest, PartialGradientsAreSummedByTheirOwners) {
  for (int zero : {1, 2, 3}) {
    const Layout layout = layout_of(zero, {.shard = 3, .tp = 4});
    const Layout whole = layout_of(0, {.replicate = 3, .tp = 4});
    const PartialGradients all = partial_gradients(whole, 0);
    EXPECT_GT(all.of_axis, 0);
    EXPECT_EQ(all.of_axis, partial_gradients(whole.param_table(0)).of_axis);
    int64_t of_axis = 0, of_copies = 0;
    for (int shard : {0, 1, 2}) {
      const PartialGradients here = partial_gradients(layout, shard * 4);
      EXPECT_EQ(here.copies, all.copies);
      of_axis += here.of_axis;
      of_copies += here.of_copies;
      for (int tensor : {1, 2, 3})
        EXPECT_EQ(partial_gradients(layout, shard * 4 + tensor).of_axis, here.of_axis) << "the group agrees";
      EXPECT_EQ(total(layout, "reduce_partial", shard * 4).payload, 4 * (here.of_axis + here.of_copies));
    }
    EXPECT_EQ(of_axis, all.of_axis);
    EXPECT_EQ(of_copies, all.of_copies);
    const Ledger ledger = predict_ledger(layout, make_program(layout), 0);
    EXPECT_EQ(entry(ledger, call_id(Purpose::kNorm), Collective::kAllReduce, "replica", Algorithm::kDirect).count, 1);
  }
}

// One shard: nothing is gathered, gradients are summed as with zero 0.
TEST(ShardingPredictTest, OneShardIsDataParallelism) {
  for (int zero : {1, 2, 3}) {
    const Layout layout = layout_of(zero, {.replicate = 2}), plain = layout_of(0, {.replicate = 2});
    EXPECT_EQ(predict_ledger(layout, make_program(layout), 0), predict_ledger(plain, make_program(plain), 0));
  }
}

TEST(ShardingTrafficTest, FormulasMeetPredictions) {
  const Layout layout = layout_of(2, {.replicate = 2, .shard = 4}, 2);
  const std::vector<StageTraffic> stages = sharding_traffic(layout, {0})[0];
  ASSERT_EQ(stages.size(), 3u);
  double parameters = static_cast<double>(arch::num_parameters(layout.model));
  for (const StageTraffic& stage : stages) {
    EXPECT_EQ(stage.gathers, stage.zero == 3 ? 4 : 1);
    EXPECT_EQ(stage.reduces, stage.zero == 1 ? 1 : 2);
    EXPECT_DOUBLE_EQ(stage.formula_bytes, 0.75 * 4 * parameters * static_cast<double>(stage.gathers + stage.reduces));
  }
  for (int zero : {0, 1})  // but for padding
    EXPECT_NEAR(static_cast<double>(stages[static_cast<size_t>(zero)].predicted_bytes) /
                    stages[static_cast<size_t>(zero)].formula_bytes,
                1, 0.002);
  EXPECT_LT(static_cast<double>(stages[2].predicted_bytes), stages[2].formula_bytes);
  const ReplicaTraffic sums = replica_traffic(make_program(layout), layout, 0);
  EXPECT_DOUBLE_EQ(sums.formula_bytes, parameters / 4 * 4);
  EXPECT_NEAR(static_cast<double>(sums.predicted_bytes) / sums.formula_bytes, 1, 0.002);
}

// A deep model with a small vocabulary comes close to 3 P.
TEST(ShardingTrafficTest, ADeepModelSendsThreeTimesItsParameters) {
  Layout layout = layout_of(3, {.shard = 8}, 1, "gpt-100b");
  const StageTraffic stage = sharding_traffic(layout, {0})[0][2];
  EXPECT_EQ(stage.gathers + stage.reduces, 3);
  EXPECT_NEAR(static_cast<double>(stage.predicted_bytes) / stage.formula_bytes, 1, 0.01);
}

}  // namespace
}  // namespace lockstep::program
