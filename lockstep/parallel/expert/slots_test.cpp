// Messages of slots against copies of one row after the other, and their way to experts and back against that of a routing on the host.
#include "lockstep/parallel/expert/slots.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/permute.h"
#include "lockstep/parallel/expert/exchange.h"
#include "lockstep/parallel/expert/routes.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

constexpr int64_t kWidth = 3, kLength = 6;

void check(const nn::RoutingRules& rules, mesh::Range own) {
  const at::Tensor logits = testing::random(cat("logits", rules.experts), {2 * kLength, rules.experts});
  const nn::DeviceChoice choice = nn::choose_on_device(at::softmax(logits, 1), {}, rules);
  const bool drops = rules.capacity_factor.has_value();
  const at::Tensor kept = drops ? nn::kept_by_capacity(choice, rules, kLength) : at::Tensor();
  const int64_t room = std::max<int64_t>(1, nn::most_of_expert(rules, own, kLength, drops)), slots = rules.experts * room;
  const nn::DeviceRouting routing = nn::place_in_slots(choice, kept, own, rules, room);
  const int64_t count = own.size() * rules.per_token;
  const at::Tensor rows = testing::random("rows", {count, kWidth});
  const at::Tensor message = into_slots(rows, routing), expected = at::zeros({slots, kWidth}), back = at::zeros_like(rows);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = routing.slot.const_data_ptr<int64_t>()[i];
    EXPECT_EQ(slot < slots, routing.kept.const_data_ptr<bool>()[i]);
    if (slot >= slots) continue;
    EXPECT_EQ(slot / room, routing.expert.const_data_ptr<int64_t>()[i]);
    EXPECT_TRUE(expected[slot].eq(0).all().item<bool>()) << "two rows in slot " << slot;
    expected[slot].copy_(rows[i]);
    back[i].copy_(rows[i]);
  }
  EXPECT_TRUE(at::equal(message, expected));
  EXPECT_TRUE(at::equal(out_of_slots(message, routing), back));
}

TEST(Slots, HoldEachKeptRowOnce) {
  for (const std::optional<double> factor : {std::optional<double>(), std::optional(0.5), std::optional(1.0)})
    for (const int64_t per_token : {1, 2, 4})
      for (const mesh::Range own : {mesh::Range{.begin = 0, .end = 12}, mesh::Range{.begin = 5, .end = 9}, mesh::Range{.begin = 11, .end = 12},
                                    mesh::Range{.begin = 6, .end = 6}}) {
        SCOPED_TRACE(cat(per_token, " per token, capacity ", factor.value_or(0), ", rows ", own.begin, " to ", own.end));
        check({.experts = 4, .per_token = per_token, .router = config::Router::kSoftmax, .capacity_factor = factor}, own);
      }
}

// As by_expert() orders as many rows of every source for every expert.
TEST(Slots, OfAllSourcesComeByExpert) {
  constexpr int64_t kRoom = 3;
  for (const int64_t sources : {1, 2, 4})
    for (const int64_t experts : {1, 2, 3}) {
      const at::Tensor rows = testing::random("rows", {sources * experts * kRoom, kWidth});
      const std::vector<int64_t> of_source(static_cast<size_t>(experts), kRoom);
      const std::vector<int64_t> order = by_expert(std::vector<std::vector<int64_t>>(static_cast<size_t>(sources), of_source));
      const at::Tensor sorted = swap_blocks(rows, sources, experts);
      EXPECT_TRUE(at::equal(sorted, rows.index_select(0, at::tensor(order, at::kLong))));
      EXPECT_TRUE(at::equal(swap_blocks(sorted, experts, sources), rows));
    }
}

// By position, so that no last bit of a weight says what is dropped.
void check_exchange(comm::Communicator& communicator, int ep, int etp, const nn::RoutingRules& rules) {
  constexpr mesh::Range kOwn{.begin = 0, .end = 2 * kLength};
  const bool drops = rules.capacity_factor.has_value();
  const int64_t room = nn::most_of_expert(rules, kOwn, kLength, drops);
  const at::Tensor scores = at::softmax(testing::random(cat("logits", communicator.rank()), {kOwn.size(), rules.experts}), 1);
  std::vector<nn::Assignment> all = nn::choose_experts(scores, {}, rules);
  if (drops) nn::drop_beyond_capacity(all, rules, kLength);
  const nn::DeviceChoice choice = nn::choose_on_device(scores, {}, rules);
  const at::Tensor kept = drops ? nn::kept_by_capacity(choice, rules, kLength) : at::Tensor();
  nn::Routing device;
  const nn::Routing host = nn::sort_by_expert(all, kOwn, rules.experts);
  device.on_device = std::make_shared<nn::DeviceRouting>(nn::place_in_slots(choice, kept, kOwn, rules, room));

  ExpertGroup group(communicator, ep, etp, {.slots = room});
  ShardedExchange exchange(&group, nullptr, nullptr, program::named_call("block"), "experts");
  const auto of_host = exchange.plan(host), of_device = exchange.plan(device);
  EXPECT_EQ(of_device->here, of_host->here);
  const at::Tensor x = testing::random(cat("x", communicator.rank()), {kOwn.size(), kWidth});
  const auto there = [&](const nn::Routing& routing, const nn::ExpertExchange::Plan& plan) {
    return exchange.dispatch(nn::permute_rows(x, routing), plan, nn::ExchangePhase::kForward)();
  };
  const at::Tensor expected = there(host, *of_host), here = there(device, *of_device);
  EXPECT_TRUE(at::equal(here, expected));
  const auto back = [&](const at::Tensor& rows, const nn::Routing& routing, const nn::ExpertExchange::Plan& plan) {
    return nn::sum_rows(exchange.combine(rows, plan, nn::ExchangePhase::kForward)(), routing, /*weighted=*/false);
  };
  testing::expect_close(back(here, device, *of_device), back(expected, host, *of_host), "sums");
}

TEST(Slots, TravelAsThoseOfTheHost) {
  for (const auto& [ep, etp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}, std::pair{4, 1}})
    for (const std::optional<double> factor : {std::optional<double>(), std::optional(0.5)}) {
      const int degrees[] = {ep, etp};
      testing::run_ranks(ep * etp, [&](comm::World& world) {
        SCOPED_TRACE(cat("ep ", degrees[0], ", etp ", degrees[1], ", capacity ", factor.value_or(0)));
        check_exchange(*world.all_ranks("ep"), degrees[0], degrees[1],
                       {.experts = 4, .per_token = 2, .router = config::Router::kSoftmax, .capacity_factor = factor, .drop = config::Drop::kPosition});
      });
    }
}

}  // namespace
}  // namespace lockstep::parallel
