// A layer of experts over several ranks against the same layer on one: outputs, gradients of inputs and of every parameter.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/mlp.h"
#include "lockstep/parallel/expert/exchange.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::parameter;
using lockstep::testing::random;
using nn::Parameter;

constexpr int64_t kExperts = 4, kModel = 6, kInner = 8, kBatch = 2, kSeq = 5;

nn::ExpertShape shape(int64_t per_token) {
  nn::ExpertShape result;
  result.sizes.count = kExperts;
  result.sizes.per_token = per_token;
  result.sizes.ffn = kInner;
  result.moe.balance = config::Balance::kNone;
  return result;
}

nn::ExpertParameters whole() {
  return {.router_weight = parameter("router", {kExperts, kModel}),
          .router_bias = {},
          .gate_up = parameter("gate_up", {kExperts * 2 * kInner, kModel}),
          .down = parameter("down", {kExperts * kModel, kInner})};
}

// What a rank holds of the fused weights: its experts, and of each its part of the inner width.
struct Cut {
  mesh::Range experts, inner;
  at::Tensor gate_up(const at::Tensor& all) const {
    return all.view({kExperts, 2, kInner, kModel})
        .narrow(0, experts.begin, experts.size())
        .narrow(2, inner.begin, inner.size())
        .reshape({experts.size() * 2 * inner.size(), kModel})
        .clone();
  }
  at::Tensor down(const at::Tensor& all) const {
    return all.view({kExperts, kModel, kInner})
        .narrow(0, experts.begin, experts.size())
        .narrow(2, inner.begin, inner.size())
        .reshape({experts.size() * kModel, inner.size()})
        .clone();
  }
};

constexpr int64_t kShared = 3;  // inner width of the shared expert

struct SharedExpert {
  Parameter up = parameter("shared_up", {2 * kShared, kModel}), down = parameter("shared_down", {kModel, kShared});
  std::unique_ptr<nn::Mlp> build() const {
    return std::make_unique<nn::Mlp>(std::make_unique<nn::Linear>(up), std::make_unique<nn::SwiGlu>(), std::make_unique<nn::Linear>(down));
  }
};

// Backward as B makes it, or as I and W.
enum class Backward { kWhole, kApart };

void check_rank(comm::Communicator& communicator, int ep, int etp, const DispatchOptions& options, int64_t per_token, Backward backward) {
  ExpertGroup group(communicator, ep, etp, options);
  const Cut cut{.experts = group.experts_here(kExperts), .inner = mesh::shard_range(kInner, etp, group.etp_rank())};
  const nn::ExpertParameters all = whole();
  const nn::ExpertParameters here{.router_weight = {.value = all.router_weight.value, .grad = all.router_weight.grad.clone()},
                                  .router_bias = {},
                                  .gate_up = {.value = cut.gate_up(all.gate_up.value), .grad = cut.gate_up(all.gate_up.grad)},
                                  .down = {.value = cut.down(all.down.value), .grad = cut.down(all.down.grad)}};
  const SharedExpert shared, twin_shared;
  nn::Experts layer(shape(per_token), here, shared.build(),
                    std::make_shared<ShardedExchange>(&group, nullptr, nullptr, program::named_call("block"), "experts"));
  nn::Experts twin(shape(per_token), all, twin_shared.build(), std::make_shared<nn::ExpertExchange>());
  for (int rank = 0; rank < communicator.size(); ++rank) {  // the twin takes the tokens of all
    const at::Tensor x = random(cat("x", rank), {kBatch, kSeq, kModel}), dy = random(cat("dy", rank), {kBatch, kSeq, kModel});
    const auto twin_saved = twin.new_saved();
    const at::Tensor twin_y = twin.forward(x, twin_saved.get());
    const at::Tensor twin_dx = twin.backward_input(dy, *twin_saved);
    twin.backward_weight(*twin_saved);
    if (rank != communicator.rank()) continue;
    const auto saved = layer.new_saved();
    expect_close(layer.forward(x, saved.get()), twin_y, "y");
    if (backward == Backward::kApart) {
      expect_close(layer.backward_input(dy, *saved), twin_dx, "dx");
      layer.backward_weight(*saved);
      continue;
    }
    nn::Pending dx = layer.start_backward_input(dy, *saved);
    layer.backward_weight(*saved);
    expect_close(dx(), twin_dx, "dx");
  }
  communicator.all_reduce(here.router_weight.grad, {.id = program::named_call("router")}).wait();
  for (const auto& [grad, name] : {std::pair(shared.up.grad, "shared up"), std::pair(shared.down.grad, "shared down")})
    communicator.all_reduce(grad, {.id = program::named_call(name)}).wait();
  expect_close(shared.up.grad, twin_shared.up.grad, "gradient of the shared gate and up");
  expect_close(shared.down.grad, twin_shared.down.grad, "gradient of the shared down");
  expect_close(here.router_weight.grad, all.router_weight.grad, "gradient of the router");
  expect_close(here.gate_up.grad, cut.gate_up(all.gate_up.grad), "gradient of gate and up");
  expect_close(here.down.grad, cut.down(all.down.grad), "gradient of down");
}

TEST(ExpertsOverRanks, AreThoseOfOneRank) {
  for (const auto& [ep, etp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}, std::pair{4, 1}})
    for (const int64_t per_token : {int64_t{1}, int64_t{2}, kExperts}) {
      SCOPED_TRACE(cat("ep ", ep, ", etp ", etp, ", ", per_token, " per token"));
      const int degrees[] = {ep, etp};
      lockstep::testing::run_ranks(ep * etp, [&](comm::World& world) {
        const auto communicator = world.all_ranks("ep");
        check_rank(*communicator, degrees[0], degrees[1], {}, per_token, Backward::kApart);
      });
    }
}

// 2 x 5 rows of each of four ranks: all may come to one.
TEST(ExpertsOverRanks, AreThoseOfOneRankHoweverTokensTravel) {
  using config::Dispatcher;
  const DispatchOptions ways[] = {{.limit = 7},
                                  {.limit = 1000},
                                  {.slots = 10},
                                  {.dispatcher = Dispatcher::kAllGather},
                                  {.dispatcher = Dispatcher::kAllGather, .limit = 9},
                                  {.dispatcher = Dispatcher::kHierarchical},
                                  {.overlap = false, .dispatcher = Dispatcher::kHierarchical, .limit = 9}};
  for (const DispatchOptions& way : ways)
    for (const int etp : {1, 2})
      for (const int64_t per_token : {int64_t{2}, kExperts})
        for (const Backward backward : {Backward::kWhole, Backward::kApart}) {
          SCOPED_TRACE(cat("dispatcher ", static_cast<int>(way.dispatcher), " limit ", way.limit, ", etp ", etp, ", ", per_token, " per token"));
          lockstep::testing::run_ranks(4, [&](comm::World& world) {
            const auto communicator = world.all_ranks("ep");
            const int rank = world.rank();
            const auto nodes = world.communicator({rank % 2, rank % 2 + 2}, "ep_nodes");
            const auto node = world.communicator({rank / 2 * 2, rank / 2 * 2 + 1}, "ep_node");
            DispatchOptions options = way;
            options.nodes = nodes.get();
            options.node = node.get();
            check_rank(*communicator, 4 / etp, etp, options, per_token, backward);
          });
        }
}

}  // namespace
}  // namespace lockstep::parallel
