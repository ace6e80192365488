// Experts as a branch: rows of the table, FLOPs, bytes and calls against sums made by hand; what each phase leaves.
#include "lockstep/arch/expert_branch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
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
          CostInput input{.batch = 3, .seq_len = 7, .element_size = element_size, .tensor = tensor};
          input.tensor.experts = experts;
          input.moe = moe;
          inputs.push_back(input);
          if (experts.ep == 2) {
            CostInput part = input;
            part.seq_len = 8, part.context = {.ranks = 2};
            inputs.push_back(part);
          }
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

// The elements of such calls at most, of 24 a row: all 42 assignments leave, to both parts of their expert (84 rows, 88 with an equal part
// for each of 8 ranks); to the 2 experts here come both of all 8 x 21 rows.
TEST(ExpertBranch, CallsAtRunTimeHaveABound) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 4, .etp = 2};
  const auto bounds = [](const CostInput& of) {
    std::vector<std::string> found;
    const ModelConfig model = model_of();
    for (const LayerCall& call : describe_layer(model, layer_spec(model, 3), of).calls) {
      EXPECT_TRUE(call.at_run_time || (call.most == 0 && !call.in_rounds)) << call.part;
      if (!call.at_run_time) continue;
      EXPECT_GE(call.most, call.numel) << call.part;
      found.push_back(cat(call.part.substr(8), call.phase == CallPhase::kForward ? " F " : " B ", call.most, call.in_rounds ? " in rounds" : ""));
    }
    return found;
  };
  EXPECT_THAT(bounds(input), UnorderedElementsAre("dispatch F 2112", "dispatch B 2112", "combine F 8064", "combine B 8064"));
  CostInput limited = input;
  limited.moe.imbalance_limit = 1.5;  // of 84 rows
  EXPECT_THAT(bounds(limited), UnorderedElementsAre("dispatch F 2112 in rounds", "dispatch B 2112 in rounds", "combine F 3024 in rounds",
                                                    "combine B 3024 in rounds"));
  CostInput gathered = input;
  gathered.dispatcher = config::Dispatcher::kAllGather;
  EXPECT_THAT(bounds(gathered), UnorderedElementsAre("tokens F 672", "weights B 336"));
  // Through a rank go the rows of its place on both nodes, to 4 ranks of its own; to it come all.
  CostInput nodes = input;
  nodes.dispatcher = config::Dispatcher::kHierarchical;
  nodes.node_ranks = 4;
  EXPECT_THAT(bounds(nodes),
              UnorderedElementsAre("tokens F 672", "weights B 336", "dispatch F 1008", "dispatch B 1008", "combine F 1008", "combine B 1008",
                                   "dispatch.node F 4032", "dispatch.node B 4032", "combine.node F 4032", "combine.node B 4032"));
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
  for (const double beyond : {1e9, 1e300}) {  // more than 64 bits count
    CostInput large{.batch = int64_t{1} << 20, .seq_len = int64_t{1} << 14};
    large.tensor.experts = {.ep = 4};
    const int64_t all = ExpertRows(model_of(), large).received;
    large.moe.imbalance_limit = beyond;
    EXPECT_EQ(ExpertRows(model_of(), large).received, all);
    EXPECT_EQ(ExpertRows(model_of(), large).limit, all);
  }
  input.moe.imbalance_limit.reset();
  input.moe.static_buffers = true;
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 21);
  EXPECT_EQ(ExpertRows(model_of(), input).received, 4 * 2 * 21);
  input.moe.capacity_factor = 1;  // 2 tokens of each of 3 sequences
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 6);
  input.moe.capacity_factor = 0.25;  // 1 of each: the 8 experts take 24 of 42 assignments, and a GPU holds all
  EXPECT_EQ(ExpertRows(model_of(), input).slots, 3);
  EXPECT_EQ(ExpertRows(model_of(), input).sent, 42);
}

// 2 of 8 experts for each of 2^34 rows in sequences of 2^31: rows x experts x capacity pass 64 bits, and what they come to does not.
TEST(ExpertRowsOfARank, OfProductsBeyond64Bits) {
  constexpr int64_t kLength = int64_t{1} << 31, kOwn = 8 * kLength;
  CostInput input{.batch = 8, .seq_len = kLength};
  input.tensor.experts = {.ep = 4};
  input.moe.capacity_factor = 1;
  const ExpertRows rows(model_of(), input);
  EXPECT_EQ(rows.balanced, 2 * kOwn);
  EXPECT_EQ(rows.sent, 2 * kOwn);
  EXPECT_EQ(rows.received, 4 * 2 * 8 * (kLength / 4)) << "4 ranks, 2 experts here, 8 sequences";
  input.moe.scope = config::MoeScope::kLastStep;
  input.moe.static_buffers = true;
  EXPECT_EQ(ExpertRows(model_of(), input).slots, kOwn);
}

// fp32 sums over rounds, 21 rows of 24: through a forward pass that makes an output, and not where it is computed again.
TEST(ExpertBranch, SumsOverRoundsAreThereInEveryForwardPass) {
  CostInput input{.batch = 3, .seq_len = 7, .element_size = 2};
  input.tensor.experts = {.ep = 2};
  const auto taken = [&](Phase phase) {
    const LayerDescription d = describe_layer(model_of(), layer_spec(model_of(), 3), input);
    int64_t bytes = 0;
    for (const Step& step : d.steps)
      if (step.phases.has(phase) && step.what == Step::What::kTake) bytes += d.bytes(step.index);
    return bytes;
  };
  for (const Phase phase : {Phase::kForward, Phase::kEvaluate, Phase::kRecompute}) {
    input.moe.imbalance_limit.reset();
    const int64_t whole = taken(phase);
    input.moe.imbalance_limit = 100;  // as many rows as without one
    EXPECT_EQ(taken(phase) - whole, phase == Phase::kRecompute ? 0 : 4 * 21 * 24);
  }
}

// Whose etp ranks lie on several nodes: of all choices of a token the one with most nodes.
TEST(ExpertRowsOfARank, NodesOfATokenAreThoseOfItsRanks) {
  for (const auto& [ep, etp, node] : {std::tuple{4, 2, 4}, {4, 2, 2}, {2, 4, 2}, {4, 4, 2}, {3, 2, 3}, {1, 6, 2}, {2, 6, 4}, {2, 6, 3}, {8, 1, 4}})
    for (int64_t per_token = 1; per_token <= 2; ++per_token) {
      SCOPED_TRACE(cat("ep ", ep, " etp ", etp, " node ", node, " per token ", per_token));
      ModelConfig model = model_of();
      model.experts.count = 2 * ep, model.experts.per_token = per_token;
      CostInput input{.batch = 3, .seq_len = 7, .dispatcher = config::Dispatcher::kHierarchical, .node_ranks = node};
      input.tensor.experts = {.ep = ep, .etp = etp};
      size_t most = 0, alone = 0;
      for (int first = 0; first < ep; ++first)
        for (int second = 0; second < ep; ++second) {
          std::set<int> nodes;
          for (int rank = 0; rank < ep * etp; ++rank)
            if (rank / etp == first || (per_token > 1 && rank / etp == second)) nodes.insert(rank / node);
          most = std::max(most, nodes.size());
          if (first == second) alone = std::max(alone, nodes.size());
        }
      const ExpertRows rows(model, input);
      EXPECT_EQ(rows.nodes_of_expert, static_cast<int64_t>(alone));
      EXPECT_GE(rows.nodes_of_token, static_cast<int64_t>(most));
      if (per_token == 1) {
        EXPECT_EQ(rows.nodes_of_token, static_cast<int64_t>(most));
      }
      EXPECT_LE(rows.nodes_of_token, ep * etp / node);
    }
}

// 21 rows, each to one expert whose four ranks are all of two nodes: to both nodes, and there to both ranks.
TEST(ExpertBranch, CallsOfAnExpertOnSeveralNodes) {
  CostInput input{.batch = 3, .seq_len = 7, .dispatcher = config::Dispatcher::kHierarchical, .node_ranks = 2};
  input.tensor.experts = {.ep = 2, .etp = 4};
  ModelConfig model = model_of();
  model.experts.per_token = 1;
  std::map<std::string, int64_t> rows;
  for (const LayerCall& call : describe_layer(model, layer_spec(model, 3), input).calls) rows[call.part] = call.numel / 24;
  EXPECT_EQ(rows.at("experts.dispatch"), 44) << "2 x 21, as four ranks share them";
  EXPECT_EQ(rows.at("experts.dispatch.node"), 84);
}

// Products and calls of the experts in a phase, but for what other branches do.
std::vector<std::string> order_of(const CostInput& input, Phase phase) {
  const LayerDescription d = describe_layer(model_of(), layer_spec(model_of(), 3), input);
  std::vector<std::string> order;
  for (const Step& step : d.steps) {
    if (!step.phases.has(phase)) continue;
    if (step.what == Step::What::kProduct) order.emplace_back(d.products[static_cast<size_t>(step.index)].name);
    if (step.what == Step::What::kStart) order.push_back("start " + d.calls[static_cast<size_t>(step.index)].part);
    if (step.what == Step::What::kJoin) order.push_back("join " + d.calls[static_cast<size_t>(step.index)].part);
  }
  std::erase_if(order, [](const std::string& what) {
    return what.find("experts.") == std::string::npos && what.find("shared.") == std::string::npos;
  });
  return order;
}

// Half of the shared expert is computed while rows are on their way to the experts, and half while they come back.
TEST(ExpertBranch, TheSharedExpertRunsMeanwhile) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 2};
  EXPECT_THAT(order_of(input, Phase::kForward),
              ElementsAre("experts.router", "start experts.counts", "join experts.counts", "start experts.dispatch", "shared.gate_up",
                          "join experts.dispatch", "experts.gate_up", "experts.down", "start experts.combine", "shared.down",
                          "join experts.combine"));
  EXPECT_THAT(order_of(input, Phase::kInput),
              ElementsAre("start experts.dispatch", "shared.down", "experts.router", "join experts.dispatch", "experts.down", "experts.gate_up",
                          "start experts.combine", "shared.gate_up", "join experts.combine"));
  EXPECT_THAT(order_of(input, Phase::kRecompute),
              ElementsAre("experts.router", "start experts.counts", "join experts.counts", "start experts.dispatch", "shared.gate_up",
                          "join experts.dispatch", "experts.gate_up", "experts.down", "start experts.combine", "join experts.combine"));
}

// Of a hierarchical dispatcher beside what travels between the nodes: rows are there before they go on inside one.
TEST(ExpertBranch, TheSharedExpertRunsMeanwhileWithEveryDispatcher) {
  CostInput input{.batch = 3, .seq_len = 7};
  input.tensor.experts = {.ep = 4, .etp = 2};
  input.dispatcher = config::Dispatcher::kAllGather;
  EXPECT_THAT(order_of(input, Phase::kForward),
              ElementsAre("experts.router", "start experts.counts", "join experts.counts", "start experts.tokens", "join experts.tokens",
                          "start experts.dispatch", "shared.gate_up", "join experts.dispatch", "experts.gate_up", "experts.down",
                          "start experts.combine", "shared.down", "join experts.combine"));
  input.dispatcher = config::Dispatcher::kHierarchical;
  input.node_ranks = 4;
  EXPECT_THAT(order_of(input, Phase::kInput),
              ElementsAre("start experts.dispatch", "shared.down", "join experts.dispatch", "start experts.dispatch.node",
                          "join experts.dispatch.node", "start experts.weights", "join experts.weights", "experts.router", "experts.down",
                          "experts.gate_up", "start experts.combine.node", "join experts.combine.node", "start experts.combine",
                          "shared.gate_up", "join experts.combine"));
}

// Bytes that are there where combine is joined and were not where it began.
int64_t made_beside_combine(const CostInput& input, Phase phase) {
  const LayerDescription d = describe_layer(model_of(), layer_spec(model_of(), 3), input);
  int64_t bytes = 0;
  bool under_way = false;
  for (const Step& step : d.steps) {
    if (!step.phases.has(phase)) continue;
    if (step.what == Step::What::kStart || step.what == Step::What::kJoin)
      if (d.calls[static_cast<size_t>(step.index)].part == "experts.combine") under_way = step.what == Step::What::kStart;
    if (under_way && step.what == Step::What::kTake) bytes += d.bytes(step.index);
    if (under_way && step.what == Step::What::kDrop) bytes -= d.bytes(step.index);
  }
  return bytes;
}

// 21 rows of 24 in fp32: the shared expert's output, and backward its gradient of x, without the gradients of the weights of 42 assignments.
TEST(ExpertBranch, BesideCombineTheSharedOutputIsMade) {
  CostInput input{.batch = 3, .seq_len = 7};
  for (const ExpertShard& shard : {ExpertShard{.ep = 2}, ExpertShard{.ep = 2, .etp = 2}}) {
    input.tensor.experts = shard;
    EXPECT_EQ(made_beside_combine(input, Phase::kForward), 4 * 21 * 24);
    EXPECT_EQ(made_beside_combine(input, Phase::kInput), 4 * 21 * 24 - 4 * 21 * 2);
    EXPECT_EQ(made_beside_combine(input, Phase::kRecompute), 0);
  }
}

}  // namespace
}  // namespace lockstep::arch
