// The folds over layer descriptions against closed formulas and walks written out by hand (test_closed_costs.h,
// test_closed_block.h): families, recomputation, tp, sequence parallelism, dtypes, uneven sizes. model/cost_test.cpp holds
// the same figures against the running layers.
#include "lockstep/arch/layer_description.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/arch/test_closed_block.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// Sizes that two and four ranks do not divide where they need not; more ranks than key/value heads.
ModelConfig model_of(Family family) {
  ModelConfig model{.family = family,
                    .layers = 2,
                    .hidden = 96,
                    .heads = 8,
                    .kv_heads = 8,
                    .head_size = 20,
                    .ffn = 387,
                    .vocab_size = 1003,
                    .max_seq_len = 1024};
  if (family != Family::kGpt2) model.kv_heads = 2, model.tied = false;
  return model;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> models;
  for (const FamilyTraits& traits : kFamilies)
    if (!traits.whole_qk_norm) models.push_back(model_of(traits.family));  // attention_kind_test.cpp has those
  ModelConfig biases = model_of(Family::kLlama);
  biases.qkv_bias = biases.out_bias = biases.mlp_bias = true;
  ModelConfig norms = model_of(Family::kGpt2);
  norms.qk_norm = true;
  ModelConfig powers = model_of(Family::kLlama);  // whose rows lie a power of two apart
  powers.hidden = 1024, powers.head_size = 64, powers.ffn = 2048;
  ModelConfig large = model_of(Family::kQwen3);  // more terms than are packed at once, several chunks of logits
  large.hidden = 2560, large.ffn = 9728, large.vocab_size = 32001;
  for (const ModelConfig& model : {biases, norms, powers, large}) models.push_back(model);
  for (size_t i = 0, count = models.size(); i < count; ++i) {
    models.push_back(models[i]);
    models.back().dropout = 0.1;
  }
  return models;
}

std::vector<CostInput> inputs() {
  std::vector<CostInput> inputs;
  const std::vector<TensorShard> shards = {{}, {2, 1, false}, {2, 0, true}, {4, 3, true}, {4, 0, false}};
  const std::vector<std::pair<int64_t, int64_t>> microbatches = {{3, 65}, {2, 64}, {1, 1}, {1, 701}};
  for (const auto& [batch, seq] : microbatches)
    for (const int64_t element_size : {4, 2})
      for (const int threads : {1, 6})
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
          for (const TensorShard& shard : shards)
            for (const bool overlap : {false, true})
              inputs.push_back({.batch = batch, .seq_len = seq, .element_size = element_size, .threads = threads,
                                .tensor = shard, .recompute = recompute, .overlap = overlap});
  return inputs;
}

std::string text_of(const ModelConfig& m, const LayerSpec& layer, const CostInput& in) {
  return cat(layer.name, " ", family_name(m.family), " hidden ", m.hidden, m.qk_norm ? " qk_norm" : "", m.mlp_bias ? " biases" : "",
             m.dropout > 0 ? " dropout" : "", " B", in.batch, " S", in.seq_len, " bytes ", in.element_size, " threads ",
             in.threads, " tp ", in.tensor.rank, "/", in.tensor.size, in.tensor.sequence_parallel ? " sequence" : "",
             " recompute ", static_cast<int>(in.recompute), in.overlap ? " overlap" : "");
}

// All combinations; `body` gets what stands in the message.
void for_all(const std::function<void(const ModelConfig&, const LayerSpec&, const CostInput&)>& body) {
  const std::vector<CostInput> all = inputs();
  int combinations = 0;
  for (const ModelConfig& model : models())
    for (const int layer : {0, 1, 2, 3})
      for (const CostInput& input : all) {
        const LayerSpec spec = layer_spec(model, layer);
        body(model, spec, input);
        ++combinations;
        if (testing::Test::HasFailure()) {
          ADD_FAILURE() << text_of(model, spec, input);
          return;
        }
      }
  EXPECT_EQ(combinations, 42 * 4 * 480);
}

using Row = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, bool>;
std::vector<Row> sorted(const std::vector<closed::Gemm>& gemms) {
  std::vector<Row> rows;
  for (const closed::Gemm& g : gemms) rows.emplace_back(g.name, g.m, g.n, g.k, g.count, g.in_weight);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// The products of these phases.
std::vector<Row> products_of(const LayerDescription& layer, const std::vector<Phase>& phases) {
  constexpr const char* kRoles[] = {"", ".dx", ".dw"};
  std::vector<Row> rows;
  for (const Step& step : layer.steps) {
    const auto in = [&](Phase phase) { return step.phases.has(phase); };
    if (step.what != Step::What::kProduct || std::none_of(phases.begin(), phases.end(), in)) continue;
    const Product& p = layer.products[static_cast<size_t>(step.index)];
    rows.emplace_back(cat(p.name, kRoles[static_cast<size_t>(p.role)]), p.m, p.n, p.k, p.count, in(Phase::kWeight));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Of W alone, or all.
double flops(const std::vector<closed::Gemm>& gemms, bool in_weight = false) {
  double sum = 0;
  for (const closed::Gemm& g : gemms)
    if (g.in_weight || !in_weight) sum += g.flops();
  return sum;
}

int64_t traffic(const LayerDescription& layer, Phase phase) {
  int64_t bytes = 0;
  for (const Step& step : layer.steps)
    if (step.phases.has(phase)) bytes += step.traffic;
  return bytes;
}

TEST(LayerDescription, CostsAreTheClosedFormulas) {
  for_all([](const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
    const LayerCost cost = layer_cost(model, layer, input);
    const closed::LayerCost expected = closed::layer_cost(model, layer, input);
    const LayerDescription description = describe_layer(model, layer, input);
    EXPECT_EQ(products_of(description, {Phase::kForward}), sorted(expected.forward));
    EXPECT_EQ(products_of(description, {Phase::kInput, Phase::kWeight}), sorted(expected.backward));
    EXPECT_EQ(cost.forward_flops, flops(expected.forward));
    EXPECT_EQ(cost.backward_flops, flops(expected.backward));
    EXPECT_EQ(cost.weight_flops, flops(expected.backward, /*in_weight=*/true));
    EXPECT_EQ(cost.input_flops(), flops(expected.backward) - flops(expected.backward, true));
    EXPECT_EQ(cost.memory_traffic, expected.memory_traffic);
    if (input.recompute != Recompute::kNone) {
      const Phase again = input.recompute == Recompute::kFull ? Phase::kRecompute : Phase::kRestore;
      EXPECT_EQ(products_of(description, {again}), sorted(expected.recompute));
      EXPECT_EQ(traffic(description, again), expected.recompute_traffic);
    }
    EXPECT_EQ(cost.kept, expected.kept);
    EXPECT_EQ(cost.output, expected.output);
    EXPECT_EQ(cost.restored, expected.restored);
    EXPECT_EQ(cost.held, expected.held);
    EXPECT_EQ(cost.forward_workspace, expected.forward_workspace);
    EXPECT_EQ(cost.recompute_workspace, expected.recompute_workspace);
    EXPECT_EQ(cost.backward_workspace, expected.backward_workspace);
    EXPECT_EQ(cost.input_workspace, expected.input_workspace);
    EXPECT_EQ(cost.weight_workspace, expected.weight_workspace);
  });
}

TEST(LayerDescription, KeptPartsAreTheTableOfABlock) {
  using Line = std::tuple<std::string, int64_t, Recompute>;
  for_all([](const ModelConfig& model, const LayerSpec&, const CostInput& input) {
    std::vector<Line> parts, expected;
    for (const Value& part : block_kept_parts(model, input)) parts.emplace_back(part.kept.as, part.bytes, part.kept.most);
    for (const closed::KeptPart& part : closed::block_parts(closed::Sizes(model, input)))
      expected.emplace_back(part.name, part.bytes, part.most);
    EXPECT_EQ(parts, expected);
  });
}

// What the steps of a phase take and do not drop.
int64_t left_by(const LayerDescription& layer, Phase phase) {
  int64_t bytes = 0;
  for (const Step& step : layer.steps) {
    if (!step.phases.has(phase)) continue;
    if (step.what == Step::What::kTake) bytes += layer.values[static_cast<size_t>(step.index)].bytes;
    if (step.what == Step::What::kDrop) bytes -= layer.values[static_cast<size_t>(step.index)].bytes;
  }
  return bytes;
}

// Every tensor is released by somebody: a phase leaves what it is to leave.
TEST(LayerDescription, NothingIsLeftOver) {
  for_all([](const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
    const LayerDescription d = describe_layer(model, layer, input);
    const bool head = layer.kind == LayerKind::kHead, block = layer.kind == LayerKind::kBlock;
    const int64_t hidden = closed::Sizes(model, input).hidden, loss = head ? 4 : 0;
    const int64_t x = d.input == kNoValue ? 0 : hidden, y = d.output == kNoValue ? 0 : hidden;
    CostInput keeping = input;
    keeping.recompute = Recompute::kNone;
    const LayerCost cost = layer_cost(model, layer, keeping);
    EXPECT_EQ(left_by(d, Phase::kForward), cost.kept - x + y);
    EXPECT_EQ(left_by(d, Phase::kEvaluate), y + loss);
    EXPECT_EQ(left_by(d, Phase::kWeight), -cost.held);
    EXPECT_EQ(left_by(d, Phase::kBackward), x + loss - cost.kept);  // dx
    EXPECT_EQ(left_by(d, Phase::kOverlapped), x + loss - cost.kept);
    if (!block) return;
    keeping.recompute = Recompute::kSelective;
    EXPECT_EQ(left_by(d, Phase::kRecompute), cost.kept - x);
    EXPECT_EQ(left_by(d, Phase::kRestore), layer_cost(model, layer, keeping).restored);
  });
}

Branch with(Branch branch, bool norm_before, bool norm_behind, bool beside = false) {
  branch.norm_before = norm_before;
  branch.norm_behind = norm_behind;
  branch.beside = beside;
  return branch;
}

// The first block of a model of such.
LayerDescription block_of(ModelConfig model, BlockSpec branches, const CostInput& input) {
  for (size_t i = 0; i < branches.size(); ++i) branches[i].name += std::to_string(i);  // each has its own
  model.blocks = {std::move(branches)};
  return describe_layer(model, layer_spec(model, 1), input);
}

// Blocks of other branches than today's models have: every phase leaves what it is to leave, products and kept bytes add up.
TEST(LayerDescription, ABlockIsAnyListOfBranches) {
  for (const ModelConfig& model : models())
    for (const CostInput& input : inputs()) {
      const std::vector<Branch> both = block_branches(model, 1);
      const Branch &attention = both[0], &mlp = both[1];
      const LayerDescription alone = block_of(model, {attention}, input), dense = block_of(model, {mlp}, input);
      for (const std::vector<Branch>& branches :
           std::vector<std::vector<Branch>>{{attention}, {mlp}, {mlp, attention}, {attention, attention, mlp}, {mlp, mlp},
                                            {with(attention, false, true), with(mlp, true, true)},
                                            {attention, with(mlp, true, false, true)}, {attention, with(mlp, false, false, true)},
                                            {with(mlp, false, false), with(mlp, true, true, true), with(mlp, false, false, true),
                                             with(attention, false, true)},
                                            {attention, with(mlp, false, true, true), with(attention, true, false, true), mlp}}) {
        const LayerDescription d = block_of(model, branches, input);
        const int64_t hidden = closed::Sizes(model, input).hidden;
        const int64_t all = left_by(d, Phase::kForward);  // x is as large as the output
        size_t products = 0;
        for (const Branch& branch : branches)
          products += (branch.kind == "attention" ? alone : dense).products.size();
        EXPECT_EQ(d.products.size(), products);
        EXPECT_EQ(left_by(d, Phase::kEvaluate), hidden);
        EXPECT_EQ(left_by(d, Phase::kRecompute), all - hidden);
        EXPECT_EQ(left_by(d, Phase::kBackward), -(all - hidden));
        EXPECT_EQ(left_by(d, Phase::kOverlapped), -(all - hidden));
        if (HasFailure()) FAIL() << text_of(model, layer_spec(model, 1), input) << " branches " << branches.size();
      }
    }
}

// Every collective that is begun is waited for in the same phase, and not before.
TEST(LayerDescription, EveryStartHasAJoin) {
  constexpr Phase kPhases[] = {Phase::kForward, Phase::kEvaluate, Phase::kRecompute, Phase::kRestore,
                               Phase::kInput,   Phase::kWeight,   Phase::kBackward,  Phase::kOverlapped};
  for_all([&](const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
    const LayerDescription d = describe_layer(model, layer, input);
    for (const Phase phase : kPhases) {
      std::vector<int> under_way(d.calls.size());
      for (const Step& step : d.steps) {
        const bool start = step.what == Step::What::kStart, join = step.what == Step::What::kJoin;
        if (!step.phases.has(phase) || (!start && !join)) continue;
        int& here = under_way[static_cast<size_t>(step.index)];
        here += start ? 1 : -1;
        EXPECT_GE(here, 0);
        EXPECT_LE(here, 1);
      }
      for (const int left : under_way) EXPECT_EQ(left, 0);
    }
  });
}

// Selective recomputation communicates nothing, and makes no product.
TEST(LayerDescription, WhatIsRestoredIsPointwise) {
  for_all([](const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
    for (const Step& step : describe_layer(model, layer, input).steps) {
      const bool pointwise = step.what == Step::What::kKernel || step.what == Step::What::kTake || step.what == Step::What::kDrop;
      EXPECT_TRUE(pointwise || !step.phases.has(Phase::kRestore));
    }
  });
}

}  // namespace
}  // namespace lockstep::arch
