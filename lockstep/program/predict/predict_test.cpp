#include "lockstep/program/predict/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::program {
namespace {

using config::DataParallel;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

Layout layout_of(const std::string& preset, int dp, int microbatches, DataParallel kind = DataParallel::kRing) {
  return {.model = arch::resolve_model({.preset = preset}),
          .mesh = mesh::Mesh::data_parallel(dp),
          .global_batch = 2 * dp * microbatches,
          .micro_batch = 2,
          .seq_len = 32,
          .data_parallel = kind,
          .bucket_bytes = 64 * 1024};
}

int64_t sent(const Layout& layout, const Program& program, int from, const std::string& site, int to = -1) {
  int64_t bytes = 0;
  const Ledger ledger = predict_ledger(layout, program, from);
  for (const auto& [key, entry] : ledger.entries()) {
    if (!call_text(key.id).starts_with(site)) continue;
    for (const auto& [peer, count] : entry.sent) bytes += to < 0 || peer == to ? count : 0;
  }
  return bytes;
}

TEST(PredictLedgerTest, RingLinksTogetherCarryTwiceNMinus1TimesTheGradients) {
  for (int n : {2, 3, 4, 5}) {
    const Layout layout = layout_of("llama-test", n, 3);
    const Program program = make_program(layout);
    EXPECT_GT(program.buckets.size(), 2u);
    int64_t all = 0;
    for (int rank = 0; rank < n; ++rank) {
      const int64_t link = sent(layout, program, rank, "reduce_grad");
      EXPECT_EQ(link, sent(layout, program, rank, "reduce_grad", (rank + 1) % n)) << "only to the next rank";
      const double formula = ring_link_bytes(4.0 * static_cast<double>(arch::num_parameters(layout.model)), n);
      EXPECT_NEAR(static_cast<double>(link) / formula, 1.0, 1e-3);  // chunks differ by one element
      all += link;
    }
    EXPECT_EQ(all, 2 * (n - 1) * 4 * arch::num_parameters(layout.model));
  }
}

TEST(PredictLedgerTest, TheServersLinkCarriesTwiceNMinus1TimesTheGradients) {
  for (int n : {2, 3, 4}) {
    const Layout layout = layout_of("gpt2-test", n, 2, DataParallel::kParameterServer);
    const Program program = make_program(layout);
    int64_t link = sent(layout, program, 0, "pull");
    EXPECT_EQ(sent(layout, program, 0, "push"), 0);
    for (int rank = 1; rank < n; ++rank) {
      link += sent(layout, program, rank, "push", 0);
      EXPECT_EQ(sent(layout, program, rank, "pull"), 0);
    }
    EXPECT_EQ(static_cast<double>(link),
              server_link_bytes(4.0 * static_cast<double>(arch::num_parameters(layout.model)), n));
  }
}

TEST(PredictLedgerTest, AServerSendsParametersInTheComputePrecision) {
  Layout layout = layout_of("gpt2-test", 2, 1, DataParallel::kParameterServer);
  layout.precision = config::Precision::kBf16;
  const Program program = make_program(layout);
  EXPECT_EQ(sent(layout, program, 0, "pull"), 2 * arch::num_parameters(layout.model));
  EXPECT_EQ(sent(layout, program, 1, "push"), 4 * arch::num_parameters(layout.model));
}

TEST(PredictLedgerTest, AccumulationOverMicrobatchesAddsNoTraffic) {
  const Layout one = layout_of("gpt2-test", 2, 1);
  const Layout five = layout_of("gpt2-test", 2, 5);
  EXPECT_EQ(predict_ledger(one, make_program(one), 0), predict_ledger(five, make_program(five), 0));
}

TEST(PredictLedgerTest, LossAndNorm) {
  const Layout layout = layout_of("gpt2-test", 3, 1, DataParallel::kParameterServer);
  const Ledger ledger = predict_ledger(layout, make_program(layout), 0);
  const LedgerEntry& loss = ledger.entries().at(
      {.id = call_id(Purpose::kLoss), .collective = Collective::kAllReduce, .axis = "dp", .algorithm = Algorithm::kDirect});
  EXPECT_EQ(loss.payload, 24);
  EXPECT_THAT(loss.sent, ElementsAre(Pair(1, 16), Pair(2, 16)));  // a chunk of one fp64, and the sum of the own one
  const LedgerEntry& norm = ledger.entries().at(
      {.id = call_id(Purpose::kNorm), .collective = Collective::kBroadcast, .axis = "dp", .algorithm = Algorithm::kDirect});
  EXPECT_THAT(norm.sent, ElementsAre(Pair(1, 8), Pair(2, 8)));
}

Layout tensor_layout(int tp, int dp, bool sequence_parallel) {
  Layout layout = layout_of("gpt2-test", dp, 1);  // 2 blocks, hidden 48; 2 sequences of 32 tokens: 64 rows
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = dp;
  degrees[mesh::Axis::kTp] = tp;
  layout.mesh = mesh::Mesh(degrees);
  layout.sequence_parallel = sequence_parallel;
  return layout;
}

// 64 rows of 48 fp32 are 12288 bytes; each of 4 ranks sends a quarter of it to each of the three others.
TEST(PredictLedgerTest, SequenceParallelCallsByHand) {
  const Layout layout = tensor_layout(4, 1, true);
  const Ledger ledger = predict_ledger(layout, make_program(layout), 1);
  const auto entry = [&](const std::string& site, Collective collective) {
    for (const auto& [text, key, found] : ledger.printed())
      if (text == site) {
        EXPECT_EQ(std::tuple(key.collective, key.axis, key.algorithm), std::tuple(collective, std::string("tp"), Algorithm::kDirect)) << site;
        return found;
      }
    ADD_FAILURE() << "no call " << site;
    return LedgerEntry();
  };
  constexpr auto kGather = Collective::kAllGather, kScatter = Collective::kReduceScatter;
  for (const auto& [site, collective] :
       {std::pair("embed forward", kScatter), {"blocks.0.attention.qkv forward", kGather},
        {"blocks.0.attention.out forward", kScatter}, {"blocks.1.mlp.up forward", kGather},
        {"blocks.1.mlp.down forward", kScatter}, {"head forward", kGather}, {"head backward", kScatter},
        {"blocks.1.mlp.down backward", kGather}, {"blocks.1.mlp.up gather", kGather},
        {"blocks.1.mlp.up backward", kScatter}, {"blocks.0.attention.out backward", kGather},
        {"blocks.0.attention.qkv gather", kGather}, {"blocks.0.attention.qkv backward", kScatter},
        {"embed backward", kGather}}) {
    EXPECT_EQ(entry(site, collective).count, 1) << site;
    EXPECT_EQ(entry(site, collective).payload, 12288) << site;
    EXPECT_THAT(entry(site, collective).sent, ElementsAre(Pair(0, 3072), Pair(2, 3072), Pair(3, 3072))) << site;
  }
  // Three fp32 of each of the 64 rows.
  EXPECT_THAT(entry("head softmax", kGather).sent, ElementsAre(Pair(0, 768), Pair(2, 768), Pair(3, 768)));
  // Two norms a block and the last: 5 weights, 5 biases; two biases behind sums a block: 4; 64 positions: 78 rows.
  const LedgerEntry& partial = ledger.entries().at({.id = call_id(Purpose::kReducePartial), .collective = Collective::kAllReduce,
                                                    .axis = "tp", .algorithm = Algorithm::kRing});
  EXPECT_EQ(partial.payload, 78 * 48 * 4);
  EXPECT_THAT(partial.sent, ElementsAre(Pair(2, 2 * 3 * 78 * 48 * 4 / 4)));
  EXPECT_EQ(sent(layout, make_program(layout), 1, "reduce_grad"), 0);
}

// Without it, an all_reduce of the 12288 bytes behind each half of a block and of dx before it: of 2 ranks each sends
// all of it or, in halves, as much.
TEST(PredictLedgerTest, TensorParallelCallsByHand) {
  const Layout layout = tensor_layout(2, 2, false);
  const Program program = make_program(layout);
  for (const char* site : {"embed forward", "blocks.0.attention.out forward", "blocks.0.attention.qkv backward",
                           "blocks.1.mlp.down forward", "blocks.1.mlp.up backward", "head backward"}) {
    EXPECT_EQ(sent(layout, program, 0, site), 12288) << site;
    EXPECT_EQ(sent(layout, program, 0, site, 1), 12288) << site;
  }
  for (const char* site : {"embed backward", "blocks.0.attention.qkv gather", "blocks.0.attention.out backward",
                           "head forward", "reduce_partial"})
    EXPECT_EQ(sent(layout, program, 0, site), 0) << site;
  // Buckets hold this rank's pieces, padded to those of the largest: what is cut is halved.
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(0)) here += spec.largest_numel;
  EXPECT_EQ(sent(layout, program, 0, "reduce_grad"), sent(layout, program, 0, "reduce_grad", 2));
  EXPECT_EQ(sent(layout, program, 0, "reduce_grad") + sent(layout, program, 2, "reduce_grad"), 2 * 4 * here);
}

TEST(PredictLedgerTest, OneRankCommunicatesNothing) {
  for (DataParallel kind : {DataParallel::kRing, DataParallel::kParameterServer}) {
    const Layout layout = layout_of("gpt2-test", 1, 2, kind);
    EXPECT_THAT(predict_ledger(layout, make_program(layout), 0).entries(), IsEmpty());
  }
}

TEST(PredictLedgerTest, AHundredBillionParametersInFp16) {
  const double bytes = 2.0 * static_cast<double>(arch::num_parameters(arch::resolve_model({.preset = "gpt-100b"})));
  EXPECT_NEAR(bytes, 200e9, 0.2e9);
  EXPECT_NEAR(ring_link_bytes(bytes, 8), 350e9, 0.4e9);
  EXPECT_NEAR(server_link_bytes(bytes, 8), 2.8e12, 0.003e12);
}

TEST(PredictMemoryTest, BytesPerParameter) {
  Layout layout = layout_of("gpt2-test", 2, 1);
  const int64_t numel = arch::num_parameters(layout.model);
  const MemoryBytes fp32 = predict_memory(layout, make_program(layout), 1);
  EXPECT_EQ(fp32[MemoryCategory::kParameters], 4 * numel);
  EXPECT_EQ(fp32[MemoryCategory::kGradients], 4 * numel);
  EXPECT_EQ(fp32[MemoryCategory::kOptimizer], 8 * numel);
  layout.precision = config::Precision::kBf16;
  const MemoryBytes bf16 = predict_memory(layout, make_program(layout), 1);
  EXPECT_EQ(bf16[MemoryCategory::kParameters], 2 * numel);
  EXPECT_EQ(bf16[MemoryCategory::kGradients], 4 * numel);
  EXPECT_EQ(bf16[MemoryCategory::kOptimizer], 12 * numel);
  EXPECT_LT(bf16[MemoryCategory::kActivations], fp32[MemoryCategory::kActivations]);
}

TEST(PredictMemoryTest, OnlyTheServerHoldsOptimizerState) {
  const Layout layout = layout_of("gpt2-test", 2, 1, DataParallel::kParameterServer);
  const Program program = make_program(layout);
  EXPECT_EQ(predict_memory(layout, program, 0)[MemoryCategory::kOptimizer], 8 * arch::num_parameters(layout.model));
  EXPECT_EQ(predict_memory(layout, program, 1)[MemoryCategory::kOptimizer], 0);
}

TEST(PredictMemoryTest, ActivationsPeakAfterTheLastForward) {
  const Layout layout = layout_of("llama-test", 1, 1);
  const arch::CostInput input{.batch = 2, .seq_len = 32, .element_size = 4};
  int64_t kept = 0;
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
    kept += arch::layer_cost(layout.model, layer, input).kept;
  }
  const int64_t tokens = 2 * 2 * 32 * 8;  // ids and targets, int64
  const int64_t loss = 4;               // a float, from the head's backward on
  EXPECT_EQ(predict_memory(layout, make_program(layout), 0)[MemoryCategory::kActivations], kept + tokens + loss);
}

TEST(PredictMemoryTest, MicrobatchesAddOnlyTheirTokensAndLosses) {
  const Layout one = layout_of("gpt2-test", 1, 1);
  const Layout four = layout_of("gpt2-test", 1, 4);
  EXPECT_EQ(predict_memory(four, make_program(four), 0)[MemoryCategory::kActivations] -
                predict_memory(one, make_program(one), 0)[MemoryCategory::kActivations],
            3 * (2 * 2 * 32 * 8 + 4));
}

}  // namespace
}  // namespace lockstep::program
