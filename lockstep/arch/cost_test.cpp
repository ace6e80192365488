// Costs against sums made by hand; bytes are held against the running layers in model/cost_test.cpp.
#include "lockstep/arch/cost.h"

#include <gtest/gtest.h>

#include "lockstep/arch/layer_description.h"

namespace lockstep::arch {
namespace {

// GPT-3 175B (Brown et al. 2020, table 2.1).
ModelConfig gpt3() {
  return {.family = Family::kGpt2,
          .layers = 96,
          .hidden = 12288,
          .heads = 96,
          .kv_heads = 96,
          .head_size = 128,
          .ffn = 49152,
          .vocab_size = 51200,
          .max_seq_len = 2048};
}

// Llama 3 8B (Grattafiori et al. 2024, table 3).
ModelConfig llama3() {
  return {.family = Family::kLlama,
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_size = 128,
          .ffn = 14336,
          .vocab_size = 128256,
          .max_seq_len = 8192,
          .tied = false};
}

TEST(ModelFlops, FollowTheClosedForms) {
  // 72 L h^2 (1 + s/6h + V/12Lh) a token, attention not halved, as that of 2 s is halved (Narayanan et al. 2021, without
  // recomputation).
  const double h = 12288, layers = 96, s = 2048, v = 51200;
  const double closed = 72 * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h));
  EXPECT_NEAR(model_flops_per_token(gpt3(), 2 * 2048), closed, 1e-9 * closed);
  // What halving the core takes away.
  const auto excess = [](const ModelConfig& m, int64_t seq) {
    return model_flops_per_token(m, 2 * seq) / model_flops_per_token(m, seq) - 1;
  };
  EXPECT_NEAR(excess(gpt3(), 2048), 0.013, 0.001);
  EXPECT_NEAR(excess(llama3(), 8192), 0.125, 0.002);
}

TEST(ModelFlops, LlamaByHand) {
  // Multiply-adds a token: q and out 2 x 4096 x 4096, k and v 2 x 4096 x 1024, MLP 3 x 4096 x 14336, head 4096 x
  // 128256; core 2 x 4096 x 8192 / 2.
  const double layer = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 14336 + 4096.0 * 8192;
  EXPECT_DOUBLE_EQ(model_flops_per_token(llama3(), 8192), 6 * (32 * layer + 4096.0 * 128256));
}

TEST(ModelFlops, HalveOddLengthsToo) {
  for (const int64_t seq : {1, 2, 3, 7, 255, 8191}) {
    const double core = 4096.0 * static_cast<double>(seq), rest = model_flops_per_token(llama3(), 8192) - 6 * 32 * 4096.0 * 8192;
    EXPECT_EQ(model_flops_per_token(llama3(), seq), rest + 6 * 32 * core);
  }
}

// Of each layer the pairs that its window lets see: half of the tokens, or the window but for the first ones.
TEST(ModelFlops, GoByTheWindowOfEachLayer) {
  ModelConfig model = llama3();
  const auto core = [&](int64_t window, double seq) {
    const auto w = static_cast<double>(window);
    return 6 * 2 * 4096 * (window == 0 ? seq / 2 : w - w * w / (2 * seq));
  };
  const double rest = model_flops_per_token(model, 8192) - 32 * core(0, 8192);
  const auto window = [](int64_t tokens) {
    BlockSpec block = usual_block();
    block.front().window = tokens;
    return block;
  };
  model.blocks = {window(512), window(512), window(0), window(100)};
  EXPECT_NEAR(model_flops_per_token(model, 8192), rest + 16 * core(512, 8192) + 8 * core(0, 8192) + 8 * core(100, 8192), 1);
  EXPECT_NEAR(model_flops_per_token(model, 64), rest + 32 * core(0, 64), 1) << "all windows are longer";
  model.blocks = {window(512)};
  ModelConfig all = llama3();
  all.sliding_window = 512;
  EXPECT_EQ(model_flops_per_token(model, 8192), model_flops_per_token(all, 8192));
}

// A token costs the same whatever the length is: what attention beside it adds is linear in it.
TEST(ModelFlops, OfStateSpacesDoNotGrowWithTheSequence) {
  const ModelConfig mamba = resolve_model({.preset = "mamba2-130m"});
  const double at_1k = model_flops_per_token(mamba, 1024);
  EXPECT_EQ(model_flops_per_token(mamba, 65536), at_1k);
  EXPECT_EQ(model_flops_per_token(mamba, 7), at_1k);
  // Of the projections and the head alone 6 x their elements; the scan and its states are beside it.
  const double matrices = 24.0 * 768 * (3352 + 1536) + 768.0 * 50288;
  EXPECT_GT(at_1k, 6 * matrices);
  EXPECT_LT(at_1k, 1.25 * 6 * matrices);
  const ModelConfig hybrid = resolve_model({.preset = "hybrid-test"});  // one layer in four sees all, one 24 tokens
  const double pair = 6 * 2 * 48;
  EXPECT_NEAR(model_flops_per_token(hybrid, 64) - model_flops_per_token(hybrid, 48), pair * (64 - 48) / 2.0 + pair * (288.0 / 48 - 288.0 / 64), 1e-6);
}

// The model FLOPs (forward 2 and backward 4 a multiply-add), and the scores a second time in backward.
TEST(LayerCost, AddsUpToModelFlops) {
  for (const ModelConfig& model : {gpt3(), llama3()}) {
    const int64_t batch = 3, seq = 512;
    double sum = 0;
    for (const LayerSpec& layer : layer_table(model)) {
      const LayerCost cost = layer_cost(model, layer, {.batch = batch, .seq_len = seq});
      sum += cost.forward_flops + cost.backward_flops;
    }
    const double tokens = static_cast<double>(batch * seq);
    const double scores_again =
        2 * tokens * static_cast<double>(seq) / 2 * static_cast<double>(model.heads * model.head_size * model.layers);
    const double expected = tokens * model_flops_per_token(model, seq) + scores_again;
    EXPECT_NEAR(sum, expected, 1e-9 * expected);
  }
}

// The modern block of planning by hand, bf16, no dropout: x, norm, sum, norm: 4D; q, k, v and mixed; gate, up, product.
TEST(LayerCost, KeptBytesOfALlamaBlock) {
  const LayerCost cost =
      layer_cost(llama3(), layer_table(llama3())[1], {.batch = 2, .seq_len = 100, .element_size = 2});
  const int64_t a_token = 2 * (4 * 4096 + (32 + 2 * 8) * 128 + 32 * 128 + 3 * 14336) + 4 * 32 + 2 * 4;
  EXPECT_EQ(cost.kept, 200 * a_token);
  EXPECT_EQ(cost.output, 200 * 2 * 4096);
}

TEST(LayerCost, HeadHoldsAChunkOfLogits) {
  EXPECT_EQ(head_chunk_rows(8192), 512);
  EXPECT_EQ(head_chunk_rows(128256), 256);
  const LayerSpec head = layer_table(llama3()).back();
  // Beside the norm's output and statistics, of all rows.
  const auto workspace = [&](int64_t batch) {
    return layer_cost(llama3(), head, {.batch = batch, .seq_len = 4096}).input_workspace - 4 * batch * 4096 * (4096 + 1);
  };
  constexpr int64_t kLoss = 4;
  EXPECT_LE(workspace(1), 4 * 256 * (128256 + 4096) + kLoss);  // the logits and the gradient of their rows
  EXPECT_LE(workspace(8), workspace(1));
  EXPECT_EQ(layer_cost(llama3(), head, {.batch = 8, .seq_len = 4096}).forward_workspace, 0);
}

// Korthikanti et al. 2022, equation 1: 34 bytes a token and column in half precision with dropout, but for the scores,
// which flash attention does not keep (in their place 4 bytes a head). Statistics of two norms, fp32, besides.
TEST(Recompute, KeepsWhatThePaperCounts) {
  ModelConfig model = gpt3();
  model.dropout = 0.1;
  const LayerSpec block = layer_table(model)[1];
  const int64_t batch = 2, seq = 512, tokens = batch * seq, h = model.hidden;
  const auto cost = [&](Recompute choice) {
    return layer_cost(model, block, {.batch = batch, .seq_len = seq, .element_size = 2, .recompute = choice});
  };
  const LayerCost none = cost(Recompute::kNone), selective = cost(Recompute::kSelective), full = cost(Recompute::kFull);
  const int64_t statistics = 4 * model.heads + 16;
  EXPECT_EQ(none.kept, tokens * (34 * h + statistics));
  EXPECT_EQ(selective.kept, tokens * (20 * h + statistics));
  EXPECT_EQ(full.kept, tokens * 2 * h);
  for (const LayerCost& c : {none, selective, full}) {
    EXPECT_EQ(c.kept + c.restored, none.kept);
    EXPECT_EQ(c.backward_workspace, none.backward_workspace);
    EXPECT_DOUBLE_EQ(c.backward_flops, none.backward_flops);
  }
  EXPECT_EQ(none.recompute_workspace, 0);
}

// Everything again but the last product, [tokens, 4 h] by [4 h, h].
TEST(Recompute, FlopsOfEachChoice) {
  const ModelConfig model = gpt3();
  const LayerDescription block = describe_layer(model, layer_table(model)[1], {.batch = 2, .seq_len = 512});
  const double tokens = 1024, h = 12288;
  const auto flops = [&](Phase phase) {
    double sum = 0;
    for (const Step& step : block.steps)
      if (step.what == Step::What::kProduct && step.phases.has(phase)) sum += block.products[static_cast<size_t>(step.index)].flops();
    return sum;
  };
  const auto traffic = [&](Phase phase) {
    int64_t sum = 0;
    for (const Step& step : block.steps)
      if (step.phases.has(phase)) sum += step.traffic;
    return sum;
  };
  EXPECT_DOUBLE_EQ(flops(Phase::kRecompute), flops(Phase::kForward) - 2 * tokens * 4 * h * h);
  EXPECT_EQ(flops(Phase::kRestore), 0);
  EXPECT_GT(traffic(Phase::kRestore), 0);
  EXPECT_LT(traffic(Phase::kRestore), traffic(Phase::kRecompute));
  EXPECT_LT(traffic(Phase::kRecompute), traffic(Phase::kForward));
}

}  // namespace
}  // namespace lockstep::arch
