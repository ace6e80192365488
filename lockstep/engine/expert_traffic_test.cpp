// What experts put on the links in a step: under real routing what the loads of the step say, under even routing what was predicted.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/test_experts.h"

namespace lockstep::engine {
namespace {

using config::Dispatcher;
using program::Ledger;
using program::LedgerEntry;
using testing::Case;
using testing::experts;
using testing::layout_for;
using testing::microbatches;

constexpr int64_t kBatch = 8;  // 2 microbatches of each of 4 ranks

// dp 4, all of whose ranks share the experts.
program::Layout over_four(int ep, int etp, Dispatcher dispatcher, arch::Recompute recompute = arch::Recompute::kNone) {
  Case c = experts({.dp = 4, .blocks = 2, .ep = ep, .etp = etp});
  c.recompute.assign(2, recompute);
  program::Layout layout = layout_for(c, kBatch);
  layout.dispatcher = dispatcher;
  if (dispatcher == Dispatcher::kHierarchical) layout.node_ranks = 2;
  return layout;
}

struct Recorded {
  std::vector<Ledger> of_ranks{}, predicted{};
  std::vector<double> loads{};  // alike on all
};

using Change = std::function<void(Executor&)>;
using Data = std::function<void(std::vector<nn::Microbatch>&)>;

Recorded record(const program::Layout& layout, const Change& change = {}, const Data& data = {}) {
  const int ranks = layout.mesh.world_size();
  Recorded recorded;
  recorded.of_ranks.resize(static_cast<size_t>(ranks));
  recorded.predicted.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  lockstep::testing::run_ranks(ranks, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    if (change) change(executor);
    std::vector<nn::Microbatch> own = microbatches(layout, world.rank(), 0);
    if (data) data(own);
    groups.take_ledger();
    const StepResult result = executor.step(own, 1, 1e-3);
    const std::lock_guard lock(mutex);
    const auto rank = static_cast<size_t>(world.rank());
    recorded.of_ranks[rank] = groups.take_ledger();
    recorded.predicted[rank] = program::predict_ledger(layout, executor.program(), world.rank());
    recorded.loads = result.loads;
  });
  for (size_t rank = 0; rank < recorded.of_ranks.size(); ++rank)
    EXPECT_EQ(Ledger::difference(recorded.predicted[rank], recorded.of_ranks[rank]), std::vector<std::string>()) << "rank " << rank;
  return recorded;
}

LedgerEntry entry_of(const Ledger& ledger, const std::string& text) {
  for (const auto& [call, key, entry] : ledger.printed())
    if (call == text) return entry;
  ADD_FAILURE() << "no " << text;
  return {};
}

// Of a step of `layout`, in bytes of rows.
class Traffic {
 public:
  Traffic(const program::Layout& layout, const Recorded& recorded) : layout_(layout), recorded_(recorded) {}

  int ranks() const { return layout_.mesh.world_size(); }
  int64_t row_bytes() const { return layout_.model.hidden * layout_.element_size(); }
  int64_t own_rows() const { return layout_.num_microbatches() * layout_.micro_batch * layout_.seq_len; }
  // Assignments to the experts of a rank, of all ranks.
  int64_t load(const ExpertLoad& of, int rank) const {
    const size_t each = of.routed.size() / static_cast<size_t>(layout_.ep);
    const auto experts = of.routed.subspan(static_cast<size_t>(rank / layout_.etp) * each, each);
    return static_cast<int64_t>(std::accumulate(experts.begin(), experts.end(), 0.0));
  }
  LedgerEntry entry(int rank, const ExpertLoad& of, const std::string& call) const {
    return entry_of(recorded_.of_ranks[static_cast<size_t>(rank)], cat(of.name, ".experts.", call));
  }
  int64_t payload(int rank, const ExpertLoad& of, const std::string& call) const { return entry(rank, of, call).payload; }
  static int64_t sent(const LedgerEntry& entry, int peer) {
    const auto found = entry.sent.find(peer);
    return found == entry.sent.end() ? 0 : found->second;
  }

 private:
  const program::Layout& layout_;
  const Recorded& recorded_;
};

// A rank sends each of its assignments to all etp ranks of the expert, and each rank sends back what came to it, which is its load.
TEST(ExpertTraffic, OfAllToAllFollowsTheLoads) {
  for (const auto& [ep, etp] : {std::pair{4, 1}, {2, 2}}) {
    const program::Layout layout = over_four(ep, etp, Dispatcher::kAllToAll);
    const Recorded recorded = record(layout);
    const Traffic traffic(layout, recorded);
    for (const ExpertLoad& of : expert_loads(layout, recorded.loads))
      for (const char* phase : {" forward", " backward"})
        for (int rank = 0; rank < 4; ++rank) {
          SCOPED_TRACE(cat(of.name, phase, " ep ", ep, " etp ", etp, " rank ", rank));
          const LedgerEntry there = traffic.entry(rank, of, cat("dispatch", phase)), back = traffic.entry(rank, of, cat("combine", phase));
          EXPECT_EQ(there.count, layout.num_microbatches());
          EXPECT_EQ(there.payload, traffic.own_rows() * layout.model.experts.per_token * etp * traffic.row_bytes());
          EXPECT_EQ(back.payload, traffic.load(of, rank) * traffic.row_bytes());
          int64_t came = there.payload - there.sent_total();  // from itself
          for (int peer = 0; peer < 4; ++peer) {
            if (peer == rank) continue;
            const int64_t from_peer = Traffic::sent(traffic.entry(peer, of, cat("dispatch", phase)), rank);
            EXPECT_EQ(Traffic::sent(back, peer), from_peer);
            came += from_peer;
          }
          EXPECT_EQ(came, traffic.load(of, rank) * traffic.row_bytes());
        }
  }
}

// Whatever the loads: each rank's rows to all, and sums of as many back.
TEST(ExpertTraffic, OfAllGatherIsAlwaysTheSame) {
  const program::Layout layout = over_four(2, 2, Dispatcher::kAllGather);
  const Recorded recorded = record(layout);
  const Traffic traffic(layout, recorded);
  const int64_t assignments = traffic.own_rows() * layout.model.experts.per_token;
  for (const ExpertLoad& of : expert_loads(layout, recorded.loads))
    for (int rank = 0; rank < 4; ++rank) {
      for (const char* call : {"dispatch forward", "dispatch backward", "combine forward", "combine backward"})
        EXPECT_EQ(traffic.payload(rank, of, call), 4 * traffic.own_rows() * traffic.row_bytes()) << call;
      EXPECT_EQ(traffic.payload(rank, of, "tokens forward"), 4 * assignments * 2 * 8);
      EXPECT_EQ(traffic.payload(rank, of, "weights backward"), 4 * assignments * 4);
    }
}

// With one expert a token: each row once to the node of its expert, and there once to the rank that has it.
TEST(ExpertTraffic, OverNodesFollowsTheLoads) {
  program::Layout layout = over_four(4, 1, Dispatcher::kHierarchical);
  layout.model.experts.per_token = 1;
  const Recorded recorded = record(layout);
  const Traffic traffic(layout, recorded);
  for (const ExpertLoad& of : expert_loads(layout, recorded.loads))
    for (const char* phase : {" forward", " backward"})
      for (const int node : {0, 1}) {
        SCOPED_TRACE(cat(of.name, phase, " node ", node));
        int64_t forwarded = 0, back = 0;
        for (const int rank : {2 * node, 2 * node + 1}) {
          EXPECT_EQ(traffic.payload(rank, of, cat("dispatch", phase)), traffic.own_rows() * traffic.row_bytes());
          EXPECT_EQ(traffic.payload(rank, of, cat("combine.node", phase)), traffic.load(of, rank) * traffic.row_bytes());
          forwarded += traffic.payload(rank, of, cat("dispatch.node", phase));
          back += traffic.payload(rank, of, cat("combine", phase));
        }
        const int64_t of_node = (traffic.load(of, 2 * node) + traffic.load(of, 2 * node + 1)) * traffic.row_bytes();
        EXPECT_EQ(forwarded, of_node);
        EXPECT_EQ(back, of_node);
      }
}

// A token's place in its sequence modulo 4 says its two experts, one of each half: its embedding is 1 at two numbers, which the router
// reads, and the branches add nothing to it.
void route_evenly(Executor& executor) {
  const int64_t half = executor.layout().model.experts.count / 2;
  for (StateTensor& tensor : executor.store().state()) {
    if (tensor.kind != StateKind::kParameter && tensor.kind != StateKind::kMaster) continue;
    const at::Tensor& value = tensor.local;
    if (tensor.name.ends_with(".attention.out.weight") || tensor.name.ends_with(".down.weight")) value.zero_();
    if (tensor.name.ends_with(".experts.router.weight")) {
      value.zero_();
      for (int64_t expert = 0; expert < 2 * half; ++expert) value[expert][expert].fill_(1);
    }
    if (!tensor.name.starts_with("embed.")) continue;
    value.zero_();
    for (int64_t token = 0; token < value.size(0); ++token)
      for (const int64_t expert : {token % half, half + token % half}) value[token][expert].fill_(1);
  }
  executor.store().loaded();
}

void tokens_by_place(std::vector<nn::Microbatch>& of) {
  for (nn::Microbatch& microbatch : of)
    for (int64_t column = 0; column < microbatch.tokens.size(1); ++column) microbatch.tokens.select(1, column).fill_(column);
}

// Predicted is balanced routing: where it is balanced every call and every link has the predicted bytes, also of what is computed again.
TEST(ExpertTraffic, UnderEvenRoutingIsThePredicted) {
  using arch::Recompute;
  for (const auto& [ep, etp] : {std::pair{4, 1}, {2, 2}})
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather, Dispatcher::kHierarchical})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        const program::Layout layout = over_four(ep, etp, dispatcher, recompute);
        ASSERT_EQ(layout.model.experts.count, 8);
        ASSERT_EQ(layout.model.experts.per_token, 2);
        SCOPED_TRACE(program::describe(layout));
        const Recorded recorded = record(layout, route_evenly, tokens_by_place);
        for (const ExpertLoad& of : expert_loads(layout, recorded.loads))
          for (const double routed : of.routed) EXPECT_EQ(routed, of.total() / 8) << of.name;
        int at_run_time = 0;
        for (size_t rank = 0; rank < recorded.of_ranks.size(); ++rank)
          for (const auto& [key, predicted] : recorded.predicted[rank].entries()) {
            const LedgerEntry& found = recorded.of_ranks[rank].entries().at(key);
            EXPECT_EQ(found.count, predicted.count) << program::call_text(key.id);
            EXPECT_EQ(found.payload, predicted.payload) << program::call_text(key.id);
            EXPECT_EQ(found.sent, predicted.sent) << program::call_text(key.id);
            at_run_time += predicted.at_run_time.decided ? 1 : 0;
          }
        EXPECT_GT(at_run_time, 0);
      }
}

// Rounds are more calls, none of which has more than its room; what comes in all of them is the load.
TEST(ExpertTraffic, InRoundsFollowsTheLoads) {
  program::Layout layout = over_four(4, 1, Dispatcher::kAllToAll);
  layout.moe.imbalance_limit = 1;
  const Recorded recorded = record(layout);
  const Traffic traffic(layout, recorded);
  double further = 0;
  for (const ExpertLoad& of : expert_loads(layout, recorded.loads)) {
    further += of.further_rounds;
    for (int rank = 0; rank < 4; ++rank) {
      const LedgerEntry back = traffic.entry(rank, of, "combine backward"), forward = traffic.entry(rank, of, "combine forward");
      EXPECT_EQ(back.count, layout.num_microbatches() + static_cast<int64_t>(of.further_rounds));
      EXPECT_EQ(back.payload, traffic.load(of, rank) * traffic.row_bytes());
      EXPECT_GE(forward.payload, back.payload) << "the rows of what ran in rounds come once more in backward";
    }
  }
  EXPECT_GT(further, 0) << "no load was uneven";
}

}  // namespace
}  // namespace lockstep::engine
