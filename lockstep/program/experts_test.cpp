// Experts as the third group of parameters: their domain, its groups on all ranks, their calls, and who counts them in the norm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "lockstep/program/planned_calls.h"
#include "lockstep/program/test_experts.h"

namespace lockstep::program {
namespace {

using arch::ParameterGroup;

const std::vector<ExpertLayout> kLayouts = {
    {.replicate = 4, .ep = 2},
    {.replicate = 4, .ep = 4},
    {.shard = 4, .ep = 2, .zero = 1},
    {.shard = 4, .ep = 4, .zero = 3},
    {.replicate = 2, .shard = 2, .ep = 2, .zero = 2},
    {.replicate = 2, .shard = 4, .ep = 2, .zero = 3},
    {.replicate = 2, .tp = 2, .ep = 2},
    {.replicate = 2, .tp = 2, .ep = 1},
    {.replicate = 2, .tp = 2, .ep = 2, .etp = 2},
    {.replicate = 2, .tp = 2, .etp = 2},
    {.shard = 2, .tp = 2, .ep = 4, .zero = 3},
    {.tp = 4, .ep = 2, .zero = 1},
    {.replicate = 2, .tp = 2, .pp = 2, .ep = 2},
    {.replicate = 4, .ep = 4, .dispatcher = config::Dispatcher::kAllGather},
    {.replicate = 4, .ep = 4, .dispatcher = config::Dispatcher::kHierarchical, .node = 2},
    {.replicate = 8, .ep = 2, .etp = 2, .dispatcher = config::Dispatcher::kHierarchical, .node = 2},
    {.shard = 4, .tp = 2, .pp = 2, .ep = 4, .zero = 1, .dispatcher = config::Dispatcher::kHierarchical, .node = 2},
};

TEST(Experts, OfAStageAreSharedOutCutAndCopied) {
  for (const ExpertLayout& of : kLayouts) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = layout_of(of);
    const Domain domain = layout.domain(ParameterGroup::kExperts);
    const int edp = layout.pipelines() / (of.ep * of.etp);
    EXPECT_EQ(layout.mesh.degree(domain.sum), edp);
    EXPECT_EQ(layout.mesh.degree(domain.shard) * layout.mesh.degree(domain.copies), edp);
    EXPECT_EQ(layout.mesh.degree(layout.expert_ranks()), of.ep * of.etp);
    EXPECT_EQ(layout.shards(ParameterGroup::kExperts), of.zero == 0 ? 1 : edp / layout.expert_degrees().edp_replicate);
    // Every (ep, etp) of a stage is held by edp ranks, those that its sum is over.
    std::map<std::pair<int, int>, std::vector<int>> holders;
    for (int rank = 0; rank < layout.pipelines(); ++rank) {
      const arch::ExpertShard experts = layout.tensor_shard(rank).experts;
      holders[{experts.ep_rank, experts.etp_rank}].push_back(rank);
    }
    EXPECT_EQ(std::ssize(holders), of.ep * of.etp);
    for (const auto& [place, ranks] : holders)
      for (const int rank : ranks) EXPECT_EQ(layout.mesh.group(rank, domain.sum), ranks);
  }
}

TEST(Experts, MayHaveOneShardWhereAllElseHasSeveralAndTheOtherWayRound) {
  const Layout one = layout_of({.replicate = 2, .shard = 2, .ep = 4, .zero = 3});
  EXPECT_EQ(one.shards(), 2);
  EXPECT_EQ(one.shards(ParameterGroup::kExperts), 1);
  EXPECT_TRUE(one.sharded_parameters());
  EXPECT_FALSE(one.sharded_parameters(ParameterGroup::kExperts));
  EXPECT_FALSE(one.transient_gradients(ParameterGroup::kExperts));
  const Layout several = layout_of({.tp = 4, .ep = 2, .zero = 3});
  EXPECT_EQ(several.shards(), 1);
  EXPECT_EQ(several.shards(ParameterGroup::kExperts), 2);
  EXPECT_TRUE(several.shares_states());
  EXPECT_FALSE(several.transient_gradients(ParameterGroup::kDense));
}

// Where they lie as all else does there are no communicators of their own but that of the layers.
TEST(Experts, AsAllElseAreOfTheDenseDomain) {
  const Layout layout = layout_of({.shard = 2, .tp = 2, .etp = 2, .zero = 1});
  EXPECT_EQ(layout.domain(ParameterGroup::kExperts), layout.dense_domain());
  std::vector<std::string> names;
  for (const GroupRef& group : groups_of(layout, 0)) names.push_back(group_name(layout, group));
  EXPECT_THAT(names, testing::Contains("etp"));
  EXPECT_THAT(names, testing::Not(testing::Contains("edp")));
}

TEST(Experts, GroupsAreMadeInOneOrderEverywhere) {
  for (const ExpertLayout& of : kLayouts) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = layout_of(of);
    using Made = std::pair<GroupRef, std::vector<int>>;
    std::vector<std::vector<Made>> made(static_cast<size_t>(layout.mesh.world_size()));
    for (size_t rank = 0; rank < made.size(); ++rank)
      for (const GroupRef& group : groups_of(layout, static_cast<int>(rank)))
        made[rank].emplace_back(group, group_ranks(layout, static_cast<int>(rank), group));
    const auto with = [&](size_t rank, size_t peer) {
      std::vector<Made> both;
      std::ranges::copy_if(made[rank], std::back_inserter(both),
                           [&](const Made& one) { return std::ranges::count(one.second, static_cast<int>(peer)) > 0; });
      return both;
    };
    for (size_t a = 0; a < made.size(); ++a)
      for (size_t b = 0; b < a; ++b) EXPECT_EQ(with(a, b), with(b, a)) << "ranks " << a << " and " << b;
    for (const ParameterGroup group : {ParameterGroup::kDense, ParameterGroup::kExperts}) {
      const GroupRef sum = group_over(layout, layout.domain(group).sum);
      if (group_size(layout, sum) > 1) {
        EXPECT_EQ(std::ranges::count(groups_of(layout, 0), sum), 1);
      }
    }
  }
}

// Over the ranks that the norm is summed over, each element of each expert is counted once.
TEST(Experts, CountOnceInTheNorm) {
  for (const ExpertLayout& of : kLayouts) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = layout_of(of);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      std::map<std::string, int64_t> counted;
      std::map<std::string, int64_t> whole;
      for (const int peer : layout.mesh.group(rank, layout.norm_ranks())) {
        const std::vector<arch::ParamSpec> table = layout.param_table(peer);
        for (const arch::FlatUnit& unit : layout.flat_layout(table).units) {
          if (unit.group != ParameterGroup::kExperts) continue;
          for (const arch::ShardSlot& slot : arch::shard_slots(unit, layout.shard(peer, unit.group))) {
            const arch::ParamSpec& spec = table[static_cast<size_t>(slot.param)];
            whole[spec.name] = spec.numel();
            if (layout.counts_in_norm(peer, unit.group)) counted[spec.name] += slot.numel;
          }
        }
      }
      EXPECT_FALSE(whole.empty());
      EXPECT_EQ(counted, whole) << "rank " << rank;
    }
  }
}

TEST(Experts, GradientsAreSummedOverThoseThatHoldTheSame) {
  const Layout layout = layout_of({.replicate = 4, .ep = 2});
  const int unit = 1 + 2 * layout.num_layers();
  const Program program{.buckets = {{.units = {unit}, .begin = 0, .end = 100}, {.units = {1}, .begin = 100, .end = 200}}};
  const auto ranks_of = [&](int bucket) {
    const std::vector<PlannedCall> calls = planned_calls(layout, program, 1, {.kind = ActionKind::kReduceGrad, .bucket = bucket});
    return calls.empty() ? std::vector<int>() : group_ranks(layout, 1, calls.front().group);
  };
  EXPECT_THAT(ranks_of(0), testing::ElementsAre(1, 3));
  EXPECT_THAT(ranks_of(1), testing::ElementsAre(0, 1, 2, 3));
}

// Without tp too; T k D of [B S, D] = 32 rows, 2 experts a token.
TEST(Experts, CallsOfLayersGoOverTheirRanks) {
  const Layout layout = layout_of({.replicate = 4, .ep = 2});
  const std::vector<PlannedCall> calls = tensor_calls(layout, {.kind = ActionKind::kForward, .layer = 1, .microbatch = 0});
  std::set<std::string> texts;
  for (const PlannedCall& call : calls) {
    texts.insert(call_text(call.id));
    EXPECT_EQ(call.group.channel, Channel::kExperts);
    EXPECT_EQ(group_size(layout, call.group), 2);
    const bool all_to_all = call.collective == Collective::kAllToAll;
    EXPECT_EQ(call.at_run_time, all_to_all);
    if (all_to_all) {
      EXPECT_EQ(call.numel, 32 * 2 * layout.model.hidden);
    }
  }
  EXPECT_THAT(texts, testing::ElementsAre("blocks.0.experts.combine forward", "blocks.0.experts.counts forward",
                                          "blocks.0.experts.dispatch forward"));
  EXPECT_TRUE(tensor_calls(layout_of({.replicate = 4}), {.kind = ActionKind::kForward, .layer = 1, .microbatch = 0}).empty());
}

// 8 ranks, two grids of 4: neighbours are on a node, and every other one has the same place on the other node.
TEST(Experts, NodesAreNeighbours) {
  const Layout layout = layout_of({.replicate = 8, .ep = 2, .etp = 2, .dispatcher = config::Dispatcher::kHierarchical, .node = 2});
  EXPECT_THAT(layout.mesh.group(5, layout.expert_ranks()), testing::ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(layout.mesh.group(5, layout.expert_node()), testing::ElementsAre(4, 5));
  EXPECT_THAT(layout.mesh.group(5, layout.expert_nodes()), testing::ElementsAre(5, 7));
  EXPECT_EQ(group_name(layout, group_over(layout, layout.expert_node(), Channel::kExperts)), "ep_node");
  EXPECT_EQ(group_name(layout, group_over(layout, layout.expert_nodes(), Channel::kExperts)), "ep_nodes");
  std::map<std::string, int> sizes;
  for (const PlannedCall& call : tensor_calls(layout, {.kind = ActionKind::kForward, .layer = 1, .microbatch = 0})) {
    sizes[call_text(call.id)] = group_size(layout, call.group);
    EXPECT_EQ(call.group.channel, Channel::kExperts);
    EXPECT_TRUE(std::ranges::count(groups_of(layout, 5), call.group) == 1);
    EXPECT_EQ(call.algorithm, Algorithm::kDirect);
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(
                         testing::Pair("blocks.0.experts.counts forward", 4), testing::Pair("blocks.0.experts.tokens forward", 4),
                         testing::Pair("blocks.0.experts.dispatch forward", 2), testing::Pair("blocks.0.experts.dispatch.node forward", 2),
                         testing::Pair("blocks.0.experts.combine forward", 2), testing::Pair("blocks.0.experts.combine.node forward", 2)));
}

TEST(Experts, LoadsTravelWithTheLoss) {
  Layout layout = layout_of({.replicate = 2, .ep = 2});
  layout.model.experts.dense_layers = {1};
  EXPECT_FALSE(layout.is_expert_block(2));
  EXPECT_EQ(layout.load_numbers(), 3 * (8 + kLoadExtras));
  EXPECT_EQ(layout.load_offset(1), 0);
  EXPECT_EQ(layout.load_offset(3), 8 + kLoadExtras);
  const std::vector<PlannedCall> calls = planned_calls(layout, {}, 0, {.kind = ActionKind::kLoss});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].numel, 3 + layout.load_numbers());
}

}  // namespace
}  // namespace lockstep::program
