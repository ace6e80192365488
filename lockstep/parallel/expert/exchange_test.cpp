// Rows to experts on other ranks and back, against what every rank's counts say by themselves.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/nn/permute.h"
#include "lockstep/parallel/expert/exchange.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using nn::ExchangePhase;

constexpr int64_t kWidth = 3;

struct Degrees {
  int ep, etp;
  int ranks() const { return ep * etp; }
};
constexpr Degrees kDegrees[] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}};

// How rows are brought; `limit` and `slots` as DispatchOptions have them.
struct Way {
  config::Dispatcher dispatcher = config::Dispatcher::kAllToAll;
  int node = 1;
  int64_t limit = 0, slots = 0;
};

// What each source sends: sources have 3 to 5 rows. Every fourth case: all to one expert; every fourth: half the experts, and rank 0, get
// and send none.
std::vector<Assigned> random_sources(int ranks, int64_t experts, uint64_t seed) {
  const RandomStream stream(seed, "sources");
  uint64_t drawn = 0;
  std::vector<Assigned> sources(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    Assigned& source = sources[rank];
    source.tokens = static_cast<int64_t>(3 + (rank + seed) % 3);
    for (int64_t expert = 0; expert < experts; ++expert) {
      int64_t& count = source.counts.emplace_back(0);
      for (int64_t row = 0; row < source.tokens; ++row) {
        const uint64_t bits = stream.bits(drawn++);
        const bool other = seed % 4 == 1 && expert != static_cast<int64_t>(seed) % experts;
        if (other || (seed % 4 == 2 && (expert % 2 == 0 || rank == 0)) || bits % 2 == 0) continue;
        source.rows.push_back(row);
        source.weights.push_back(0.25F * static_cast<float>(1 + bits / 2 % 4));  // sums of them are exact
        ++count;
      }
    }
  }
  return sources;
}

at::Tensor rows_of_rank(size_t rank, int64_t rows) {
  const at::Tensor x = at::empty({rows, kWidth}, at::kFloat);
  for (int64_t row = 0; row < rows; ++row) x[row].fill_(static_cast<double>(7 * rank + 1) + static_cast<double>(row));
  return x;
}

// Expert e makes e + 1 times a row, of which member t of etp gives the part t + 1.
struct Journey {
  ShardedExchange& exchange;
  ExpertGroup& group;
  int64_t experts;
  ExchangePhase phase;
  at::Tensor x;
  at::Tensor y{}, dweights{};  // sums of own rows; of dy = x

  void multiply(const at::Tensor& rows, const std::vector<int64_t>& here) const {
    int64_t begin = 0, expert = group.experts_here(experts).begin;
    for (const int64_t count : here) {
      rows.narrow(0, begin, count).mul_(++expert * (group.etp_rank() + 1));
      begin += count;
    }
    ASSERT_EQ(begin, rows.size(0));
  }
  void go(const nn::Routing& own, const nn::ExpertExchange::Plan& plan, const std::vector<int64_t>& places) {
    for (const nn::ExpertExchange::Round& round : plan.rounds) go(round.own, *round.plan, round.places);
    if (!plan.rounds.empty()) return;
    const int64_t limit = group.options().limit;
    if (limit > 0) {
      EXPECT_LE(std::accumulate(plan.here.begin(), plan.here.end(), int64_t{0}), limit);
    }
    const at::Tensor index = at::tensor(places, at::kLong);
    if (plan.tokens) {
      const at::Tensor tokens = exchange.spread(x, plan, phase)();
      const at::Tensor rows = nn::permute_rows(tokens, *plan.tokens);
      multiply(rows, plan.here);
      y.add_(exchange.collect(nn::sum_rows(rows, *plan.tokens, true), plan, phase)());
      dweights.index_copy_(0, index, exchange.return_weights(nn::sum_rows_backward(tokens, rows, *plan.tokens).weights, plan));
      return;
    }
    const at::Tensor rows = exchange.dispatch(nn::permute_rows(x, own), plan, phase)();
    multiply(rows, plan.here);
    const at::Tensor back = exchange.combine(rows, plan, phase)();
    y.add_(nn::sum_rows(back, own, true));
    dweights.index_copy_(0, index, nn::sum_rows_backward(x, back, own).weights);
  }
};

void check_case(ExpertGroup& group, size_t rank, const std::vector<Assigned>& sources) {
  ShardedExchange exchange(&group, nullptr, program::named_call("block"), "experts");
  const Assigned& self = sources[rank];
  const auto experts = static_cast<int64_t>(self.counts.size());
  const at::Tensor x = rows_of_rank(rank, self.tokens);
  at::Tensor y = at::zeros_like(x), dweights = at::zeros({static_cast<int64_t>(self.rows.size())}, at::kFloat);
  std::vector<int64_t> places;
  for (int64_t expert = 0; expert < experts; ++expert)
    for (int64_t i = 0; i < self.counts[static_cast<size_t>(expert)]; ++i) {
      const auto place = static_cast<int64_t>(places.size());
      const int64_t row = self.rows[places.size()];
      const at::Tensor made = x[row] * ((expert + 1) * group.etp() * (group.etp() + 1) / 2);
      y[row].add_(made * self.weights[places.size()]);
      dweights[place].copy_((made * x[row]).sum());
      places.push_back(place);
    }
  const nn::Routing own = routing_of(self, self.tokens);
  const auto plan = exchange.plan(own);
  for (const ExchangePhase phase : {ExchangePhase::kForward, ExchangePhase::kBackward}) {
    Journey journey{exchange, group, experts, phase, x, at::zeros_like(y), at::zeros_like(dweights)};
    journey.go(own, *plan, places);
    ASSERT_TRUE(at::equal(journey.y, y));
    ASSERT_TRUE(at::equal(journey.dweights, dweights));
  }
}

void check_cases(const Degrees& degrees, const Way& way, uint64_t cases) {
  lockstep::testing::run_ranks(degrees.ranks(), [&](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    std::unique_ptr<comm::Communicator> nodes, node;
    if (way.dispatcher == config::Dispatcher::kHierarchical) {
      std::vector<int> across, beside;
      for (int rank = 0; rank < world.size(); ++rank) {
        if (rank % way.node == world.rank() % way.node) across.push_back(rank);
        if (rank / way.node == world.rank() / way.node) beside.push_back(rank);
      }
      nodes = world.communicator(across, "ep_nodes");
      node = world.communicator(beside, "ep_node");
    }
    ExpertGroup group(*communicator, degrees.ep, degrees.etp,
                      {.overlap = true, .dispatcher = way.dispatcher, .nodes = nodes.get(), .node = node.get(), .limit = way.limit, .slots = way.slots});
    for (uint64_t seed = 0; seed < cases; ++seed) {
      SCOPED_TRACE(cat("ep ", degrees.ep, " etp ", degrees.etp, " dispatcher ", config::name_of(way.dispatcher), " node ", way.node, " limit ",
                       way.limit, " slots ", way.slots, " case ", seed));
      const int64_t experts = degrees.ep * static_cast<int64_t>(1 + seed % 3);
      check_case(group, static_cast<size_t>(world.rank()), random_sources(degrees.ranks(), experts, seed));
    }
  });
}

void check_all(uint64_t cases) {
  using config::Dispatcher;
  for (const Degrees& degrees : kDegrees)
    for (const Way& way : {Way{}, Way{.limit = 4}, Way{.limit = 1}, Way{.slots = 5}, Way{.dispatcher = Dispatcher::kAllGather},
                           Way{.dispatcher = Dispatcher::kAllGather, .limit = 3}}) {
      if (degrees.ranks() == 1 && way.dispatcher != Dispatcher::kAllToAll) continue;
      check_cases(degrees, degrees.ranks() == 1 ? Way{} : way, cases);
    }
  for (const auto& [degrees, node] : {std::pair{Degrees{4, 1}, 2}, std::pair{Degrees{2, 2}, 2}, std::pair{Degrees{4, 2}, 4}, std::pair{Degrees{4, 2}, 2}})
    for (const int64_t limit : {0, 3}) check_cases(degrees, {.dispatcher = Dispatcher::kHierarchical, .node = node, .limit = limit}, cases);
}

TEST(ShardedExchange, BringsEveryRowToItsExpertAndBack) { check_all(12); }
TEST(LongShardedExchange, BringsEveryRowToItsExpertAndBack) { check_all(400); }

TEST(ShardedExchange, LedgerHasTheBytesOfTheRowsThatWereSent) {
  lockstep::testing::run_ranks(2, [](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    ExpertGroup group(*communicator, 2, 1);
    ShardedExchange exchange(&group, nullptr, program::named_call("block"), "experts");
    nn::Routing own;
    own.counts = world.rank() == 0 ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{0, 2};
    const auto plan = exchange.plan(own);
    communicator->take_ledger();
    const int64_t rows = world.rank() == 0 ? 5 : 2;
    exchange.dispatch(at::full({rows, kWidth}, 1.0, at::kFloat), *plan, ExchangePhase::kForward)();
    const program::Ledger ledger = communicator->take_ledger();
    ASSERT_EQ(ledger.entries().size(), 1u);
    const auto& [key, entry] = *ledger.entries().begin();
    EXPECT_EQ(program::call_text(key.id), "experts.dispatch forward");
    EXPECT_EQ(entry.payload, rows * kWidth * 4);
    EXPECT_EQ(entry.sent_total(), world.rank() == 0 ? 4 * kWidth * 4 : 0);
  });
}

// Whatever the layers between hold, each row is routed by one rank, and comes back where it was.
TEST(ShardedExchange, CutsTheRowsOfTpOnce) {
  for (const int tp : {2, 4})
    for (const bool sequence : {false, true})
      for (const int64_t rows : {int64_t{14}, int64_t{3}})
        lockstep::testing::run_ranks(tp, [&](comm::World& world) {
          const auto communicator = world.all_ranks("tp");
          TensorGroup tensor(*communicator, {.sequence_parallel = sequence});
          ShardedExchange exchange(nullptr, &tensor, program::named_call("block"), "experts");
          const at::Tensor whole = lockstep::testing::random("x", {1, rows, kWidth});
          const mesh::Range own = exchange.own_rows(rows);
          const at::Tensor mine = whole.view({rows, kWidth}).narrow(0, own.begin, own.size());
          const at::Tensor held = sequence ? mine.clone() : whole;
          EXPECT_TRUE(at::equal(exchange.take_own(held, rows), mine));
          for (const ExchangePhase phase : {ExchangePhase::kForward, ExchangePhase::kBackward})
            EXPECT_TRUE(at::equal(exchange.give_all(mine.clone(), held, rows, phase)(), held));
          EXPECT_TRUE(at::equal(exchange.gather_scores(mine.contiguous(), rows), whole.view({rows, kWidth})));
          EXPECT_EQ(exchange.tells_sums(), world.rank() == 0);
        });
}

TEST(ExpertGroup, RefusesDegreesThatAreNotThoseOfItsRanks) {
  lockstep::testing::run_ranks(2, [](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    EXPECT_THROW(ExpertGroup(*communicator, 2, 2), InternalError);
    EXPECT_THROW(ExpertGroup(*communicator, 2, 1).experts_here(3), InternalError);
  });
}

}  // namespace
}  // namespace lockstep::parallel
