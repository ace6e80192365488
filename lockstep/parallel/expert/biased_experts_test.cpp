// Experts with biases and a clamp over several ranks against the same layer on one: outputs and every gradient. A bias of down counts once,
// however many ranks share its expert.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/nn/experts.h"
#include "lockstep/parallel/expert/exchange.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::parameter;
using lockstep::testing::random;
using nn::Parameter;

constexpr int64_t kExperts = 4, kModel = 7, kInner = 5, kBatch = 2, kSeq = 5;  // uneven over etp

nn::ExpertShape shape() {
  nn::ExpertShape result;
  result.sizes.count = kExperts;
  result.sizes.per_token = 2;
  result.sizes.ffn = kInner;
  result.sizes.logit_bias = true;
  result.sizes.biases = true;
  result.sizes.clamp = 1.5;
  result.moe.balance = config::Balance::kNone;
  return result;
}

nn::ExpertParameters whole() {
  return {.router_weight = parameter("router", {kExperts, kModel}),
          .router_bias = {},
          .gate_up = parameter("gate_up", {kExperts * 2 * kInner, kModel}),
          .down = parameter("down", {kExperts * kModel, kInner}),
          .logit_bias = parameter("logit_bias", {kExperts}),
          .gate_up_bias = parameter("gate_up_bias", {kExperts * 2 * kInner}),
          .down_bias = parameter("down_bias", {kExperts * kModel})};
}

// What a rank's table has of fused values: of `shape`, whose dim 0 are the experts, its experts, and of the dim `cut` its part over etp.
struct Cut {
  mesh::Range experts;
  int etp, etp_rank;
  at::Tensor of(const at::Tensor& all, at::IntArrayRef shape, int64_t cut) const {
    const mesh::Range part = mesh::shard_range(shape[static_cast<size_t>(cut)], etp, etp_rank);
    return all.view(shape).narrow(0, experts.begin, experts.size()).narrow(cut, part.begin, part.size()).clone(at::MemoryFormat::Contiguous);
  }
  at::Tensor gate_up(const at::Tensor& all) const { return of(all, {kExperts, 2, kInner, kModel}, 2).view({-1, kModel}); }
  at::Tensor gate_up_bias(const at::Tensor& all) const { return of(all, {kExperts, 2, kInner}, 2).view({-1}); }
  at::Tensor down(const at::Tensor& all) const {
    const at::Tensor piece = of(all, {kExperts, kModel, kInner}, 2);
    return piece.view({-1, piece.size(2)});
  }
  at::Tensor down_bias(const at::Tensor& all) const { return of(all, {kExperts, kModel}, 1).view({-1}); }
};

Parameter own(const Parameter& all, const at::Tensor& value) { return {.value = value, .grad = at::zeros(value.sizes(), all.grad.options())}; }

void check_rank(comm::Communicator& communicator, int ep, int etp, const DispatchOptions& options, bool whole_backward) {
  ExpertGroup group(communicator, ep, etp, options);
  const Cut cut{.experts = group.experts_here(kExperts), .etp = etp, .etp_rank = group.etp_rank()};
  const nn::ExpertParameters all = whole();
  const nn::ExpertParameters here{.router_weight = own(all.router_weight, all.router_weight.value),
                                  .router_bias = {},
                                  .gate_up = own(all.gate_up, cut.gate_up(all.gate_up.value)),
                                  .down = own(all.down, cut.down(all.down.value)),
                                  .logit_bias = own(all.logit_bias, all.logit_bias.value),
                                  .gate_up_bias = own(all.gate_up_bias, cut.gate_up_bias(all.gate_up_bias.value)),
                                  .down_bias = own(all.down_bias, cut.down_bias(all.down_bias.value))};
  nn::Experts layer(shape(), here, nullptr,
                    std::make_shared<ShardedExchange>(&group, nullptr, nullptr, program::named_call("block"), "experts"));
  nn::Experts twin(shape(), all, nullptr, std::make_shared<nn::ExpertExchange>());
  for (int rank = 0; rank < communicator.size(); ++rank) {  // the twin takes the tokens of all
    const at::Tensor x = random(cat("x", rank), {kBatch, kSeq, kModel}), dy = random(cat("dy", rank), {kBatch, kSeq, kModel});
    const auto twin_saved = twin.new_saved();
    const at::Tensor twin_y = twin.forward(x, twin_saved.get());
    const at::Tensor twin_dx = twin.backward_input(dy, *twin_saved);
    twin.backward_weight(*twin_saved);
    if (rank != communicator.rank()) continue;
    const auto saved = layer.new_saved();
    expect_close(layer.forward(x, saved.get()), twin_y, "y");
    if (!whole_backward) {  // I and W apart
      expect_close(layer.backward_input(dy, *saved), twin_dx, "dx");
      layer.backward_weight(*saved);
      continue;
    }
    nn::Pending dx = layer.start_backward_input(dy, *saved);
    layer.backward_weight(*saved);
    expect_close(dx(), twin_dx, "dx");
  }
  communicator.all_reduce(here.router_weight.grad, {.id = program::named_call("router")}).wait();
  communicator.all_reduce(here.logit_bias.grad, {.id = program::named_call("logits")}).wait();
  expect_close(here.router_weight.grad, all.router_weight.grad, "gradient of the router");
  expect_close(here.logit_bias.grad, all.logit_bias.grad, "gradient of the bias of logits");
  expect_close(here.gate_up.grad, cut.gate_up(all.gate_up.grad), "gradient of gate and up");
  expect_close(here.gate_up_bias.grad, cut.gate_up_bias(all.gate_up_bias.grad), "gradient of the biases of gate and up");
  expect_close(here.down.grad, cut.down(all.down.grad), "gradient of down");
  expect_close(here.down_bias.grad, cut.down_bias(all.down_bias.grad), "gradient of the bias of down");
}

TEST(BiasedExpertsOverRanks, AreThoseOfOneRank) {
  for (const auto& [ep, etp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{1, 3}, std::pair{2, 2}}) {
    SCOPED_TRACE(cat("ep ", ep, ", etp ", etp));
    const int degrees[] = {ep, etp};
    lockstep::testing::run_ranks(ep * etp, [&](comm::World& world) {
      const auto communicator = world.all_ranks("ep");
      check_rank(*communicator, degrees[0], degrees[1], {}, /*whole_backward=*/false);
    });
  }
}

// 2 x 5 rows of each of four ranks: all may come to one. Empty slots have outputs, of biases alone, that nobody takes.
TEST(BiasedExpertsOverRanks, AreThoseOfOneRankHoweverTokensTravel) {
  using config::Dispatcher;
  const DispatchOptions ways[] = {{.limit = 7},
                                  {.slots = 10},
                                  {.dispatcher = Dispatcher::kAllGather},
                                  {.dispatcher = Dispatcher::kAllGather, .limit = 9},
                                  {.dispatcher = Dispatcher::kHierarchical},
                                  {.overlap = false, .dispatcher = Dispatcher::kHierarchical, .limit = 9}};
  for (const DispatchOptions& way : ways)
    for (const int etp : {1, 2})
      for (const bool whole_backward : {true, false}) {
        SCOPED_TRACE(cat("dispatcher ", static_cast<int>(way.dispatcher), " limit ", way.limit, " slots ", way.slots, ", etp ", etp));
        lockstep::testing::run_ranks(4, [&](comm::World& world) {
          const auto communicator = world.all_ranks("ep");
          const int rank = world.rank();
          const auto nodes = world.communicator({rank % 2, rank % 2 + 2}, "ep_nodes");
          const auto node = world.communicator({rank / 2 * 2, rank / 2 * 2 + 1}, "ep_node");
          DispatchOptions options = way;
          options.nodes = nodes.get();
          options.node = node.get();
          check_rank(*communicator, 4 / etp, etp, options, whole_backward);
        });
      }
}

}  // namespace
}  // namespace lockstep::parallel
