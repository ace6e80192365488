// Experts as a branch: rows of the table, FLOPs, bytes and calls against sums made by hand; what each phase leaves.
#include "lockstep/arch/expert_branch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// Blocks 0 and 1 are dense.
ModelConfig model_of(config::Router router = config::Router::kSoftmaxAfterTopk, int64_t shared = 1) {
  ModelConfig model{.family = Family::kMixtral, .layers = 4, .hidden = 24, .heads = 6, .kv_heads = 2, .head_size = 4, .ffn = 40,
                    .vocab_size = 53, .max_seq_len = 64, .tied = false};
  model.experts = {.count = 8, .per_token = 2, .ffn = 20, .shared = shared, .router = router, .dense_layers = {0, 1}};
  return model;
}

std::vector<CostInput> inputs() {
  std::vector<CostInput> inputs;
  std::vector<config::MoeSection> sections(5);
  sections[1].balance = config::Balance::kNone;
  sections[2].capacity_factor = 0.5, sections[2].z_coefficient = 0.001;
  sections[3].imbalance_limit = 1.5;
  sections[4].static_buffers = true;
  for (const int64_t element_size : {4, 2})
    for (const TensorShard& tensor : {TensorShard{}, TensorShard{.size = 2}, TensorShard{.size = 2, .rank = 1, .sequence_parallel = true}})
      for (const ExpertShard& experts : {ExpertShard{}, ExpertShard{.ep = 2}, ExpertShard{.etp = 2}, ExpertShard{.ep = 4, .etp = 2}})
        for (const config::MoeSection& moe : sections) {
          CostInput& input = inputs.emplace_back(CostInput{.batch = 3, .seq_len = 7, .element_size = element_size, .tensor = tensor});
          input.tensor.experts = experts;
          input.moe = moe;
          if (experts.ep < 4 || moe.static_buffers) continue;
          for (const config::Dispatcher dispatcher : {config::Dispatcher::kAllGather, config::Dispatcher::kHierarchical}) {
            CostInput other = input;
            other.dispatcher = dispatcher;
            other.node_ranks = dispatcher == config::Dispatcher::kHierarchical ? 4 : 1;
            inputs.push_back(other);
          }
        }
  for (size_t i = 0, count = inputs.size(); i < count; ++i) {
    CostInput by_last_step = inputs[i];
    by_last_step.moe.scope = config::MoeScope::kLastStep;
    inputs.push_back(by_last_step);
  }
  return inputs;
}

int64_t left_by(const LayerDescription& layer, Phase phase) {
  int64_t bytes = 0;
  for (const Step& step : layer.steps) {
    if (!step.phases.has(phase)) continue;
    if (step.what == Step::What::kTake) bytes += layer.bytes(step.index);
    if (step.what == Step::What::kDrop) bytes -= layer.bytes(step.index);
  }
  return bytes;
}

int64_t kept(const LayerDescription& layer, Recompute choice) {
  int64_t bytes = 0;
  for (const Value& value : layer.values) bytes += value.kept_by(choice) ? value.bytes : 0;
  return bytes;
}

TEST(ExpertBranch, EveryPhaseLeavesWhatItIsToLeave) {
  for (const config::Router router : {config::Router::kSoftmax, config::Router::kSoftmaxAfterTopk, config::Router::kSigmoid, config::Router::kExpertChoice})
    for (const int64_t shared : {0, 1})
      for (const double dropout : {0.0, 0.1})
        for (const CostInput& input : inputs()) {
          ModelConfig model = model_of(router, shared);
          model.dropout = dropout;
          const LayerDescription d = describe_layer(model, layer_spec(model, 3), input);
          const int64_t x = d.bytes(d.input), all = kept(d, Recompute::kNone);
          EXPECT_EQ(left_by(d, Phase::kForward), all);  // the output is as large as x
          EXPECT_EQ(left_by(d, Phase::kEvaluate), x);
          EXPECT_EQ(left_by(d, Phase::kRecompute), all - x);
          EXPECT_EQ(left_by(d, Phase::kRestore), all - kept(d, Recompute::kSelective));
          EXPECT_EQ(left_by(d, Phase::kBackward), x - all);
          EXPECT_EQ(left_by(d, Phase::kOverlapped), x - all);
          if (HasFailure()) FAIL() << "router " << static_cast<int>(router) << " shared " << shared << " tp " << input.tensor.size << " ep "
                                   << input.tensor.experts.ep << " etp " << input.tensor.experts.etp << " bytes " << input.element_size;
        }
}

TEST(ExpertBranch, EveryStartHasAJoin) {
  constexpr Phase kPhases[] = {Phase::kForward, Phase::kEvaluate, Phase::kRecompute, Phase::kRestore,
                               Phase::kInput,   Phase::kWeight,   Phase::kBackward,  Phase::kOverlapped};
  for (const CostInput& input : inputs())
    for (const Phase phase : kPhases) {
      const LayerDescription d = describe_layer(model_of(), layer_spec(model_of(), 3), input);
      std::vector<int> under_way(d.calls.size());
      for (const Step& step : d.steps) {
        const bool start = step.what == Step::What::kStart, join = step.what == Step::What::kJoin;
        if (!step.phases.has(phase) || (!start && !join)) continue;
        int& here = under_way[static_cast<size_t>(step.index)];
        here += start ? 1 : -1;
        EXPECT_TRUE(here == 0 || here == 1);
      }
      for (const int left : under_way) EXPECT_EQ(left, 0);
    }
}

TEST(ExpertBranch, RowsOfTheTable) {
  const ModelConfig model = model_of();
  std::vector<std::string> names, fused;
  for (const ParamSpec& spec : layer_parameters(model, layer_spec(model, 3), {.begin = 2, .end = 4})) {
    if (spec.name.find("experts") == std::string::npos) continue;
    names.push_back(spec.name.substr(std::string("blocks.2.").size()));
    EXPECT_EQ(spec.expert >= 0, spec.name.find("experts.2.") != std::string::npos || spec.name.find("experts.3.") != std::string::npos);
    if (spec.expert == 3) fused.push_back(spec.fuse);
  }
  EXPECT_THAT(names, ElementsAre("experts_norm.weight", "experts.router.weight", "experts.shared.gate.weight", "experts.shared.up.weight",
                                 "experts.shared.down.weight", "experts.2.gate.weight", "experts.2.up.weight", "experts.3.gate.weight",
                                 "experts.3.up.weight", "experts.2.down.weight", "experts.3.down.weight"));
  EXPECT_THAT(fused, ElementsAre("blocks.2.experts.gate_up.weight", "blocks.2.experts.gate_up.weight", "blocks.2.experts.down.weight"));
  EXPECT_EQ(block_branches(model, 2).back().kind, "mlp");
  EXPECT_EQ(block_branches(model, 3).back().kind, "experts");
  EXPECT_EQ(layer_pattern(model, layer_spec(model, 1)), layer_pattern(model, layer_spec(model, 2)));
  EXPECT_NE(layer_pattern(model, layer_spec(model, 2)), layer_pattern(model, layer_spec(model, 3)));
  EXPECT_THAT(first_blocks(model), ElementsAre(1, 3));
}

TEST(ExpertBranch, ABiasIsABalancersParameter) {
  ModelConfig model = model_of(config::Router::kSigmoid);
  model.experts.router_bias = true;
  for (const ParamSpec& spec : layer_parameters(model, layer_spec(model, 3), {.begin = 0, .end = 1})) {
    const bool bias = spec.name == "blocks.2.experts.router.bias";
    EXPECT_EQ(spec.in_norm, !bias) << spec.name;
    EXPECT_EQ(spec.update.optimizer->id, bias ? "balance" : "adamw") << spec.name;
    EXPECT_FALSE(bias && spec.weight_decay);
  }
}

// Multiply-adds of a token: router, k experts and the shared one.
TEST(ExpertBranch, FlopsAreThoseOfActiveExperts) {
  const double attention = 24 * (2 * 24 + 2 * 8) + 2 * 24 * 16 * 0.5, mlp = 3 * 24 * 40, experts = 24 * 8 + (2 + 1) * 3 * 24 * 20;
  for (const config::Router router : {config::Router::kSoftmax, config::Router::kExpertChoice})
    EXPECT_EQ(model_flops_per_token(model_of(router), 16), 6 * (4 * attention + 2 * mlp + 2 * experts + 24 * 53));
}

TEST(ExpertRowsOfARank, AreTheWorstCase) {
  const ModelConfig model = model_of();
  CostInput input{.batch = 3, .seq_len = 7};
  const ExpertRows alone(model, input);
  EXPECT_EQ(alone.received, 3 * 7 * 2);
  EXPECT_EQ(alone.sent, alone.balanced);
  input.tensor.experts = {.ep = 8, .etp = 2};  // one expert here
  const ExpertRows shared(model, input);
  EXPECT_EQ(shared.received, 16 * 3 * 7);
  EXPECT_EQ(shared.balanced, 2 * 3 * 7 * 2);
  input.moe.capacity_factor = 1;  // ceil(2 x 7 / 8) tokens of a sequence
  EXPECT_EQ(ExpertRows(model, input).received, 16 * 3 * 2);
  input.moe.scope = config::MoeScope::kLastStep;  // what an expert had then says nothing of what it gets now
  EXPECT_EQ(ExpertRows(model, input).received, shared.received);
  EXPECT_EQ(ExpertRows(model, input).sent, shared.sent);
  input.moe.scope = config::MoeScope::kSequence;
  EXPECT_EQ(expert_capacity(model.experts, 0.5, 7), 1);
  EXPECT_EQ(expert_capacity(model.experts, 100, 7), 7);
  EXPECT_EQ(ExpertRows(model_of(config::Router::kExpertChoice), input).sent, 8 * 3 * 2);
}

TEST(ExpertBranch, CallsOverBothGroups) {
  const ModelConfig model = model_of();
  CostInput input{.batch = 3, .seq_len = 7, .tensor = {.size = 2}};
  input.tensor.experts = {.ep = 2};
  std::vector<std::string> found;
  for (const LayerCall& call : describe_layer(model, layer_spec(model, 3), input).calls) {
    if (!call.part.starts_with("experts.")) continue;
    found.push_back(cat(call.part.substr(8), call.phase == CallPhase::kForward ? " F " : " B ", call.numel, call.over == CallGroup::kExperts ? " ep" : " tp"));
    EXPECT_EQ(call.at_run_time, call.collective == Collective::kAllToAll);
  }
  EXPECT_THAT(found, UnorderedElementsAre("scores F 176 tp", "counts F 16 ep", "dispatch F 528 ep", "dispatch B 528 ep", "combine F 528 ep",
                                          "combine B 528 ep", "rows F 528 tp", "rows B 528 tp", "shared.down F 504 tp",
                                          "shared.gate_up B 504 tp"));
  // The counts of a whole batch are known: no rank asks for the scores of others, but for a capacity.
  const auto gathers_scores = [&] {
    return std::ranges::any_of(describe_layer(model, layer_spec(model, 3), input).calls,
                               [](const LayerCall& call) { return call.part == "experts.scores"; });
  };
  EXPECT_TRUE(gathers_scores());
  input.moe.scope = config::MoeScope::kLastStep;
  EXPECT_FALSE(gathers_scores());
  input.moe.capacity_factor = 1;
  EXPECT_TRUE(gathers_scores());
  input.tensor = {};
  EXPECT_TRUE(describe_layer(model, layer_spec(model, 3), input).calls.empty());
}

std::vector<std::string> exchanges(const CostInput& input) {
  const ModelConfig model = model_of();
  std::vector<std::string> found;
  constexpr std::string_view kOver[] = {"tp", "ep", "nodes", "node"};
  for (const LayerCall& call : describe_layer(model, layer_spec(model, 3), input).calls)
    if (call.over != CallGroup::kTensor)
      found.push_back(cat(call.part.substr(8), call.phase == CallPhase::kForward ? " F " : " B ", call.numel, call.at_run_time ? " about " : " ",
                          kOver[static_cast<size_t>(call.over)]));
  return found;
}

// 21 rows of 24, 2 of 8 experts each, over 8 ranks: as many rows to all; each row to all; each to at most both nodes, and there to one rank
// of 4, twice for its two parts of an expert. With slots every expert may get all 21.
TEST(ExpertBranch, CallsOfEveryDispatcher) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 4, .etp = 2};
  EXPECT_THAT(exchanges(input), UnorderedElementsAre("counts F 64 ep", "dispatch F 2112 about ep", "dispatch B 2112 about ep",
                                                     "combine F 2112 about ep", "combine B 2112 about ep"));
  CostInput gathered = input;
  gathered.dispatcher = config::Dispatcher::kAllGather;
  EXPECT_THAT(exchanges(gathered),
              UnorderedElementsAre("counts F 72 ep", "tokens F 672 about ep", "weights B 336 about ep", "dispatch F 4032 ep", "dispatch B 4032 ep",
                                   "combine F 4032 ep", "combine B 4032 ep"));
  CostInput nodes = input;
  nodes.dispatcher = config::Dispatcher::kHierarchical;
  nodes.node_ranks = 4;
  EXPECT_THAT(exchanges(nodes),
              UnorderedElementsAre("counts F 72 ep", "tokens F 672 about ep", "weights B 336 about ep", "dispatch F 1008 about nodes",
                                   "dispatch B 1008 about nodes", "combine F 1008 about nodes", "combine B 1008 about nodes",
                                   "dispatch.node F 2016 about node", "dispatch.node B 2016 about node", "combine.node F 2016 about node",
                                   "combine.node B 2016 about node"));
  CostInput slots = input;
  slots.moe.static_buffers = true;
  EXPECT_THAT(exchanges(slots), UnorderedElementsAre("dispatch F 8064 ep", "dispatch B 8064 ep", "combine F 8064 ep", "combine B 8064 ep"));
}

TEST(ExpertRowsOfARank, AreAtMostTheLimit) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 4};
  input.moe.imbalance_limit = 1.5;
  const ExpertRows rows(model_of(), input);
  EXPECT_EQ(rows.limit, 63);  // of 42
  EXPECT_EQ(rows.received, 63);
  input.moe.imbalance_limit = 100;
  EXPECT_EQ(ExpertRows(model_of(), input).received, 4 * 21 * 2);
  input.moe.imbalance_limit.reset();
  input.moe.static_buffers = true;
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 21);
  EXPECT_EQ(ExpertRows(model_of(), input).received, 4 * 2 * 21);
  input.moe.capacity_factor = 1;  // 2 tokens of each of 3 sequences
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 6);
}

// Dispatch is on its way while the shared expert is computed.
TEST(ExpertBranch, TheSharedExpertRunsMeanwhile) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 2};
  const LayerDescription d = describe_layer(model_of(), layer_spec(model_of(), 3), input);
  std::vector<std::string> order;
  for (const Step& step : d.steps) {
    if (!step.phases.has(Phase::kForward)) continue;
    if (step.what == Step::What::kProduct) order.emplace_back(d.products[static_cast<size_t>(step.index)].name);
    if (step.what == Step::What::kStart) order.push_back("start " + d.calls[static_cast<size_t>(step.index)].part);
    if (step.what == Step::What::kJoin) order.push_back("join " + d.calls[static_cast<size_t>(step.index)].part);
  }
  order.erase(order.begin(), std::ranges::find(order, std::string("experts.router")));
  EXPECT_THAT(order, ElementsAre("experts.router", "start experts.counts", "join experts.counts", "start experts.dispatch", "shared.gate_up",
                                 "shared.down", "join experts.dispatch", "experts.gate_up", "experts.down", "start experts.combine",
                                 "join experts.combine"));
}

}  // namespace
}  // namespace lockstep::arch
