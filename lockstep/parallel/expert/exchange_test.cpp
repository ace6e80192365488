// Rows to experts on other ranks and back, against what every rank's counts say by themselves.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
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

// Assignments of each source to each expert. Every fourth case: all to one expert; every fourth: half the experts, and rank 0, have none.
std::vector<std::vector<int64_t>> random_counts(int ranks, int64_t experts, uint64_t seed) {
  const RandomStream stream(seed, "counts");
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(ranks), std::vector<int64_t>(static_cast<size_t>(experts)));
  uint64_t drawn = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank)
    for (size_t expert = 0; expert < counts[rank].size(); ++expert) {
      const auto rows = static_cast<int64_t>(stream.bits(drawn++) % 5);
      const bool none = (seed % 4 == 1 && expert != seed % counts[rank].size()) || (seed % 4 == 2 && (expert % 2 == 0 || rank == 0));
      counts[rank][expert] = none ? 0 : rows;
    }
  return counts;
}

// Row `row` of what a source has for an expert.
float value(size_t source, size_t expert, int64_t row) {
  return static_cast<float>(1000 * source + 20 * expert) + static_cast<float>(row);
}
at::Tensor rows_of(const std::vector<float>& values) {
  const at::Tensor rows = at::empty({static_cast<int64_t>(values.size()), kWidth}, at::kFloat);
  for (size_t i = 0; i < values.size(); ++i) rows[static_cast<int64_t>(i)].fill_(values[i]);
  return rows;
}

void check_case(ExpertGroup& group, size_t rank, const std::vector<std::vector<int64_t>>& counts) {
  ShardedExchange exchange(&group, nullptr, program::named_call("block"), "experts");
  std::vector<float> sent, come;
  const auto experts = static_cast<int64_t>(counts[0].size());
  for (size_t expert = 0; expert < counts[rank].size(); ++expert)
    for (int64_t row = 0; row < counts[rank][expert]; ++row) sent.push_back(value(rank, expert, row));
  const mesh::Range here = group.experts_here(experts);
  for (auto expert = static_cast<size_t>(here.begin); expert < static_cast<size_t>(here.end); ++expert)
    for (size_t source = 0; source < counts.size(); ++source)
      for (int64_t row = 0; row < counts[source][expert]; ++row) come.push_back(value(source, expert, row));
  const auto plan = exchange.plan(counts[rank]);
  ASSERT_EQ(std::accumulate(plan->here.begin(), plan->here.end(), int64_t{0}), static_cast<int64_t>(come.size()));
  for (const ExchangePhase phase : {ExchangePhase::kForward, ExchangePhase::kBackward}) {
    const at::Tensor arrived = exchange.dispatch(rows_of(sent), *plan, phase)();
    ASSERT_TRUE(at::equal(arrived, rows_of(come)));
    // Member t of etp gives t + 1 times its rows: the sum shows that each was added once.
    const at::Tensor back = exchange.combine(arrived.mul(group.etp_rank() + 1), *plan, phase)();
    ASSERT_TRUE(at::equal(back, rows_of(sent).mul(group.etp() * (group.etp() + 1) / 2)));
  }
}

void check_cases(uint64_t cases) {
  for (const Degrees degrees : kDegrees)
    lockstep::testing::run_ranks(degrees.ranks(), [&](comm::World& world) {
      const auto communicator = world.all_ranks("ep");
      ExpertGroup group(*communicator, degrees.ep, degrees.etp);
      for (uint64_t seed = 0; seed < cases; ++seed) {
        SCOPED_TRACE(cat("ep ", degrees.ep, " etp ", degrees.etp, " case ", seed));
        const int64_t experts = degrees.ep * static_cast<int64_t>(1 + seed % 3);
        check_case(group, static_cast<size_t>(world.rank()), random_counts(degrees.ranks(), experts, seed));
      }
    });
}

TEST(ShardedExchange, BringsEveryRowToItsExpertAndBack) { check_cases(60); }
TEST(LongShardedExchange, BringsEveryRowToItsExpertAndBack) { check_cases(2000); }

TEST(ShardedExchange, LedgerHasTheBytesOfTheRowsThatWereSent) {
  lockstep::testing::run_ranks(2, [](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    ExpertGroup group(*communicator, 2, 1);
    ShardedExchange exchange(&group, nullptr, program::named_call("block"), "experts");
    const auto plan = exchange.plan(world.rank() == 0 ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{0, 2});
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
