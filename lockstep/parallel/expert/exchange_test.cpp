// Rows to experts on other ranks and back, against what every rank's counts say by themselves.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/nn/branch.h"
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

// What a row does: of every four cases one each. Of kAnyExperts every second one leaves half the experts without a row, and rank 0 sends none.
enum class Choice { kAnyExperts, kOneExpert, kAllExperts, kDropped };
Choice choice_of(uint64_t seed) { return static_cast<Choice>(seed % 4); }

bool goes_to(Choice choice, int64_t experts, uint64_t seed, size_t rank, int64_t expert, bool drawn) {
  if (choice == Choice::kOneExpert) return expert == static_cast<int64_t>(seed) % experts;
  if (choice == Choice::kAllExperts) return true;
  const bool half = choice == Choice::kAnyExperts && seed % 8 >= 4;
  return drawn && !(half && (expert % 2 == 0 || rank == 0));
}

// What a rank of 3 to 5 rows sends, by expert, then by row; one sequence where there is a capacity.
Assigned random_source(const RandomStream& stream, int64_t experts, uint64_t seed, size_t rank) {
  const Choice choice = choice_of(seed);
  const auto tokens = static_cast<int64_t>(3 + (rank + seed) % 3);
  uint64_t drawn = 100 * rank;
  std::vector<nn::Assignment> assignments;
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t expert = 0; expert < experts; ++expert) {
      const uint64_t bits = stream.bits(drawn++);
      if (!goes_to(choice, experts, seed, rank, expert, bits % 2 == 1)) continue;
      assignments.push_back({.row = row, .expert = expert, .weight = 0.25F * static_cast<float>(1 + bits / 2 % 4)});  // sums of them are exact
    }
  if (choice == Choice::kDropped)
    nn::drop_beyond_capacity(assignments, {.experts = experts, .per_token = std::max<int64_t>(1, experts / 2), .capacity_factor = 0.5}, tokens);
  const nn::Routing sent = nn::sort_by_expert(assignments, {.begin = 0, .end = tokens}, experts);
  return {.counts = sent.counts, .rows = sent.rows, .weights = sent.weights, .tokens = tokens};
}

std::vector<Assigned> random_sources(int ranks, int64_t experts, uint64_t seed) {
  const RandomStream stream(seed, "sources");
  std::vector<Assigned> sources;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) sources.push_back(random_source(stream, experts, seed, rank));
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
  ShardedExchange exchange(&group, nullptr, nullptr, program::named_call("block"), "experts");
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

// The cases are what they are called.
TEST(ExchangeCases, AreOfEveryKind) {
  constexpr int64_t kExperts = 4;
  for (uint64_t seed = 0; seed < 12; ++seed)
    for (const Assigned& source : random_sources(2, kExperts, seed)) {
      const auto sent = static_cast<int64_t>(source.rows.size());
      if (choice_of(seed) == Choice::kOneExpert) {
        EXPECT_EQ(source.counts[seed % kExperts], source.tokens);
        EXPECT_EQ(sent, source.tokens);
      }
      if (choice_of(seed) == Choice::kAllExperts) {
        EXPECT_EQ(source.counts, std::vector<int64_t>(kExperts, source.tokens));
      }
      if (choice_of(seed) == Choice::kDropped) {  // ceil(0.5 x 2 x T / 4)
        for (const int64_t count : source.counts) EXPECT_LE(count, (source.tokens + 3) / 4);
      }
    }
}

TEST(ShardedExchange, BringsEveryRowToItsExpertAndBack) { check_all(12); }
TEST(LongShardedExchange, BringsEveryRowToItsExpertAndBack) { check_all(400); }

TEST(ShardedExchange, LedgerHasTheBytesOfTheRowsThatWereSent) {
  lockstep::testing::run_ranks(2, [](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    ExpertGroup group(*communicator, 2, 1);
    ShardedExchange exchange(&group, nullptr, nullptr, program::named_call("block"), "experts");
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

// Whether row `row` of the source goes to any expert of one of the parts [first, last) of `ep`.
bool goes_to(const Assigned& source, int64_t row, int ep, int first, int last) {
  const int64_t of_part = std::ssize(source.counts) / ep;
  size_t place = 0;
  for (int64_t expert = 0; expert < std::ssize(source.counts); ++expert)
    for (int64_t i = 0; i < source.counts[static_cast<size_t>(expert)]; ++i)
      if (source.rows[place++] == row && expert / of_part >= first && expert / of_part < last) return true;
  return false;
}

// Rows that `from` sends to `to` on the way to the experts, by the counts alone; back they come in equal number.
struct Expected {
  const std::vector<Assigned>& sources;
  Degrees degrees;
  int node = 1;

  const Assigned& source(int rank) const { return sources[static_cast<size_t>(rank)]; }
  int64_t tokens_to(int rank, int first, int last) const {  // its rows that ranks [first, last) want
    int64_t rows = 0;
    for (int64_t row = 0; row < source(rank).tokens; ++row)
      rows += goes_to(source(rank), row, degrees.ep, first / degrees.etp, (last - 1) / degrees.etp + 1) ? 1 : 0;
    return rows;
  }
  int64_t assignments_to(int rank, int to) const {
    const int64_t of_part = std::ssize(source(rank).counts) / degrees.ep;
    const auto first = source(rank).counts.begin() + to / degrees.etp * of_part;
    return std::accumulate(first, first + of_part, int64_t{0});
  }
  int64_t to_node(int from, int to) const { return tokens_to(from, to / node * node, (to / node + 1) * node); }
  // What ranks of every node whose place is that of `from` have sent through it, and `to` of its node wants.
  int64_t in_node(int from, int to) const {
    int64_t rows = 0;
    for (int sender = from % node; sender < degrees.ranks(); sender += node) rows += tokens_to(sender, to, to + 1);
    return rows;
  }
};

using RowsTo = std::function<int64_t(int peer)>;

// The one entry of a call: to each of `ranks` so many rows, of so many bytes each.
void expect_sent(const program::Ledger& ledger, const std::string& text, int self, const std::vector<int>& ranks, const RowsTo& rows,
                 int64_t row_bytes) {
  int found = 0;
  for (const auto& [call, key, entry] : ledger.printed()) {
    if (call != text) continue;
    ++found;
    EXPECT_EQ(entry.count, 1) << text;
    for (const int peer : ranks) {
      const auto sent = entry.sent.find(peer);
      const int64_t bytes = peer == self ? 0 : rows(peer) * row_bytes;
      EXPECT_EQ(sent == entry.sent.end() ? 0 : sent->second, bytes) << text << " from " << self << " to " << peer;
    }
  }
  EXPECT_EQ(found, 1) << text;
}

std::vector<int> ranks_up_to(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_ledger(const Degrees& degrees, config::Dispatcher dispatcher, int node, uint64_t seed) {
  const std::vector<Assigned> sources = random_sources(degrees.ranks(), degrees.ep * int64_t{2}, seed);
  const Expected expected{sources, degrees, node};
  lockstep::testing::run_ranks(degrees.ranks(), [&](comm::World& world) {
    SCOPED_TRACE(cat("ep ", degrees.ep, " etp ", degrees.etp, " ", config::name_of(dispatcher), " case ", seed));
    const int self = world.rank();
    std::vector<int> across, beside;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank % node == self % node) across.push_back(rank);
      if (rank / node == self / node) beside.push_back(rank);
    }
    std::vector<std::unique_ptr<comm::Communicator>> groups;
    groups.push_back(world.all_ranks("ep"));
    const bool by_node = dispatcher == config::Dispatcher::kHierarchical;
    if (by_node) groups.push_back(world.communicator(across, "ep_nodes"));
    if (by_node) groups.push_back(world.communicator(beside, "ep_node"));
    const auto take_ledger = [&] {
      program::Ledger ledger;
      for (const auto& each : groups) ledger.merge(each->take_ledger());
      return ledger;
    };
    ExpertGroup group(*groups[0], degrees.ep, degrees.etp,
                      {.dispatcher = dispatcher, .nodes = by_node ? groups[1].get() : nullptr, .node = by_node ? groups[2].get() : nullptr});
    ShardedExchange exchange(&group, nullptr, nullptr, program::named_call("block"), "experts");
    const Assigned& own = expected.source(self);
    const nn::Routing routing = routing_of(own, own.tokens);
    const auto plan = exchange.plan(routing);
    const at::Tensor x = rows_of_rank(static_cast<size_t>(self), own.tokens);
    std::vector<int64_t> places(own.rows.size());
    std::iota(places.begin(), places.end(), 0);
    constexpr int64_t kRow = kWidth * 4;
    const std::vector<int> ranks = ranks_up_to(world.size());
    int64_t most_rows = 1, most_assignments = 1;
    for (const Assigned& source : sources) {
      most_rows = std::max(most_rows, source.tokens);
      most_assignments = std::max(most_assignments, std::ssize(source.rows));
    }
    for (const ExchangePhase phase : {ExchangePhase::kForward, ExchangePhase::kBackward}) {
      const char* which = phase == ExchangePhase::kForward ? " forward" : " backward";
      const auto call = [&](const char* part) { return cat("experts.", part, which); };
      take_ledger();
      Journey journey{exchange, group, std::ssize(own.counts), phase, x, at::zeros_like(x), at::zeros({std::ssize(own.rows)}, at::kFloat)};
      journey.go(routing, *plan, places);
      const program::Ledger ledger = take_ledger();
      if (dispatcher == config::Dispatcher::kAllToAll) {
        EXPECT_EQ(ledger.entries().size(), 2u);
        expect_sent(ledger, call("dispatch"), self, ranks, [&](int peer) { return expected.assignments_to(self, peer); }, kRow);
        expect_sent(ledger, call("combine"), self, ranks, [&](int peer) { return expected.assignments_to(peer, self); }, kRow);
        continue;
      }
      expect_sent(ledger, "experts.weights backward", self, ranks, [&](int) { return most_assignments; }, 4);
      if (dispatcher == config::Dispatcher::kAllGather) {
        EXPECT_EQ(ledger.entries().size(), 3u);
        for (const char* part : {"dispatch", "combine"}) expect_sent(ledger, call(part), self, ranks, [&](int) { return most_rows; }, kRow);
        continue;
      }
      EXPECT_EQ(ledger.entries().size(), 5u);
      expect_sent(ledger, call("dispatch"), self, across, [&](int peer) { return expected.to_node(self, peer); }, kRow);
      expect_sent(ledger, call("combine"), self, across, [&](int peer) { return expected.to_node(peer, self); }, kRow);
      expect_sent(ledger, call("dispatch.node"), self, beside, [&](int peer) { return expected.in_node(self, peer); }, kRow);
      expect_sent(ledger, call("combine.node"), self, beside, [&](int peer) { return expected.in_node(peer, self); }, kRow);
    }
  });
}

// There and back, forward and backward: what the counts of all ranks say, to every peer.
TEST(ShardedExchange, LedgerHasTheBytesThatTheCountsSay) {
  using config::Dispatcher;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (const Degrees& degrees : {Degrees{2, 1}, Degrees{1, 2}, Degrees{4, 1}, Degrees{2, 2}})
      for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) check_ledger(degrees, dispatcher, 1, seed);
    for (const auto& [degrees, node] : {std::pair{Degrees{4, 1}, 2}, std::pair{Degrees{2, 2}, 2}, std::pair{Degrees{4, 2}, 4}})
      check_ledger(degrees, Dispatcher::kHierarchical, node, seed);
  }
}

// Whatever the layers between hold, each row is routed by one rank, and comes back where it was.
TEST(ShardedExchange, CutsTheRowsOfTpOnce) {
  for (const int tp : {2, 4})
    for (const bool sequence : {false, true})
      for (const int64_t rows : {int64_t{14}, int64_t{3}})
        lockstep::testing::run_ranks(tp, [&](comm::World& world) {
          const auto communicator = world.all_ranks("tp");
          TensorGroup tensor(*communicator, {.sequence_parallel = sequence});
          ShardedExchange exchange(nullptr, &tensor, nullptr, program::named_call("block"), "experts");
          const at::Tensor whole = lockstep::testing::random("x", {1, rows, kWidth});
          const mesh::Range own = exchange.own_rows(rows);
          const at::Tensor mine = whole.view({rows, kWidth}).narrow(0, own.begin, own.size());
          const at::Tensor held = sequence ? mine.clone() : whole;
          EXPECT_TRUE(at::equal(exchange.take_own(held, rows), mine));
          for (const ExchangePhase phase : {ExchangePhase::kForward, ExchangePhase::kBackward})
            EXPECT_TRUE(at::equal(exchange.give_all(mine.clone(), held, rows, phase)(), held));
          EXPECT_TRUE(at::equal(exchange.gather_scores(mine.contiguous(), {.count = 1, .length = rows, .valid = {}}), whole.view({rows, kWidth})));
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
