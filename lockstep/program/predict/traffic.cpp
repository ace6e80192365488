#include "lockstep/program/predict/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/build.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {
namespace {

// The different actions of a list that are wanted, and how often each is there, whatever the microbatch.
template <typename Wanted>
std::vector<std::pair<Action, int64_t>> repeated_actions(const std::vector<Action>& list, const Wanted& wanted) {
  std::vector<std::pair<Action, int64_t>> actions;
  std::map<std::array<int, 5>, size_t> known;
  for (Action action : list) {
    if (!wanted(action)) continue;
    action.microbatch = 0;
    const std::array<int, 5> key = {static_cast<int>(action.kind), action.stage, action.layer, action.bucket, action.unit};
    const auto [entry, is_new] = known.try_emplace(key, actions.size());
    if (is_new) actions.emplace_back(action, 0);
    actions[entry->second].second += 1;
  }
  return actions;
}

template <typename Wanted>
std::vector<RepeatedCalls> calls_of(const Layout& layout, const Program& program, int rank, const Wanted& wanted) {
  const std::vector<std::pair<Action, int64_t>> repeated = repeated_actions(program.list(rank), wanted);
  std::vector<Action> actions;
  for (const auto& [action, times] : repeated) actions.push_back(action);
  std::vector<std::vector<CallOfRank>> planned = calls_of_rank(layout, program, rank, actions);
  std::vector<RepeatedCalls> calls;
  for (size_t i = 0; i < actions.size(); ++i)
    calls.push_back({.action = actions[i], .times = repeated[i].second, .calls = std::move(planned[i])});
  return calls;
}

// What the rank sends between its layers to mend any of what `lacks` says, and to pull.
int64_t sent_for(const Program& program, const Layout& layout, int rank, State lacks, bool pulls = false) {
  EffectTable effects(layout, program.buckets, rank);
  const auto mends = [&](const Touch& touch) { return (touch.from & ~touch.to & lacks) != 0; };
  const auto wanted = [&](const Action& action) {
    if (pulls && of_bucket(action.kind) && !reduces(action.kind)) return true;
    return !computes(action.kind) && std::ranges::any_of(effects.of(action).touches, mends);
  };
  int64_t sent = 0;
  for (const RepeatedCalls& repeated : calls_of(layout, program, rank, wanted))
    for (const CallOfRank& planned : repeated.calls) sent += repeated.times * sent_bytes(planned);
  return sent;
}

// Id, collective, axis and algorithm; size of the group; whether this rank is its root.
using CallKind = std::tuple<LedgerKey, size_t, bool>;
// Calls and bytes of each.
using CallKinds = std::map<CallKind, std::pair<int64_t, int64_t>>;

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce || collective == Collective::kGather ||
         collective == Collective::kScatter;
}

CallKinds call_kinds(const Program& program, const Layout& layout, int rank, bool numbered) {
  CallKinds kinds;
  for (RepeatedCalls& repeated : repeated_calls(layout, program, rank)) {
    if (differs_by_shard(layout, repeated.action)) continue;
    for (CallOfRank& planned : repeated.calls) {
      if (!numbered) planned.key.id = planned.key.id.of_every_owner();
      const bool root = has_root(planned.call.collective) && planned.call.root == planned.group_rank;
      auto& [count, bytes] = kinds[{planned.key, planned.call.group.size(), root}];
      count += repeated.times;
      bytes += repeated.times * payload(planned.call);
    }
  }
  return kinds;
}

// Ranks of one class make the same calls, but for their shard. Along tp the rows of what goes between stages may differ.
RankClass calling_class(const Program& program, const Layout& layout, int rank) {
  RankClass of_rank = class_of(program, layout, rank);
  if (layout.micro_batch * layout.seq_len % layout.mesh.degree(mesh::Axis::kTp) == 0) of_rank.tp = 0;
  return of_rank;
}

int64_t gathers(const Layout& layout) {
  if (layout.zero < 3) return 1;
  const int64_t microbatches = layout.num_microbatches();
  const bool stays = !layout.reshard_after_forward && (layout.pipeline.ranks == 1 || !layout.reshard_after_microbatch);
  if (stays) return layout.reshard_after_microbatch ? microbatches : 1;
  return layout.reshard_after_microbatch ? 2 * microbatches : microbatches + 1;
}

}  // namespace

std::vector<std::vector<int>> alike_ranks(const Program& program, const Layout& layout, const std::vector<int>& ranks,
                                          bool numbered) {
  std::map<CallKinds, size_t> known;
  std::map<RankClass, size_t> of_class;
  std::vector<std::vector<int>> groups;
  for (const int rank : ranks) {
    const auto [group, fresh] = of_class.try_emplace(calling_class(program, layout, rank), 0);
    if (fresh) group->second = known.try_emplace(call_kinds(program, layout, rank, numbered), groups.size()).first->second;
    if (group->second == groups.size()) groups.emplace_back();
    groups[group->second].push_back(rank);
  }
  return groups;
}

std::vector<int> stage_ranks(const Layout& layout) {
  std::vector<int> ranks;
  for (int pp = 0; pp < layout.pipeline.ranks; ++pp) ranks.push_back(pp * layout.mesh.world_size() / layout.pipeline.ranks);
  return ranks;
}

int64_t parameters_of(const Layout& layout, int rank) {
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(rank)) here += spec.local_numel();
  return here;
}

std::vector<ReductionTraffic> reduction_traffic(const Layout& layout, const std::vector<int>& ranks) {
  const int n = layout.mesh.degree(layout.tokens());
  Layout ring = layout, server = layout;
  ring.zero = server.zero = 0;
  ring.offload = server.offload = {};
  ring.data_parallel = config::DataParallel::kRing;
  server.data_parallel = config::DataParallel::kParameterServer;
  const auto sent = [](const Layout& kind, const Program& program, int rank) {
    return sent_for(program, kind, rank, kPartOfTokens, /*pulls=*/true);
  };
  const Program reduces = make_program(ring), pushes = make_program(server);
  std::vector<ReductionTraffic> traffic;
  for (const int rank : ranks) {
    // Every link of the ring carries what its rank sends; the workers of a server are all alike.
    const std::vector<int> group = layout.mesh.group(rank, layout.tokens());
    const int worker = group[n > 1 ? kServerRank + 1 : kServerRank];
    traffic.push_back({.ring_link = sent(ring, reduces, rank),
                       .server_link = (n - 1) * sent(server, pushes, worker) + sent(server, pushes, group[kServerRank])});
  }
  return traffic;
}

std::vector<std::vector<StageTraffic>> sharding_traffic(const Layout& layout, const std::vector<int>& ranks) {
  LOCKSTEP_CHECK(layout.shards() > 1, "one shard: nothing is gathered");
  const double wire = layout.reduce_precision == config::Precision::kBf16 ? 2 : 4;
  std::vector<std::vector<StageTraffic>> of_ranks(ranks.size());
  for (int zero : {1, 2, 3}) {
    Layout staged = layout;
    staged.zero = zero;
    staged.offload.parameters = layout.offload.parameters && zero == 3;
    const Program program = make_program(staged);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const double share = (layout.shards() - 1.0) / layout.shards() * static_cast<double>(parameters_of(layout, ranks[i]));
      StageTraffic stage{.zero = zero};
      stage.gathers = gathers(staged);
      stage.reduces = staged.transient_gradients() && !staged.reduces_once() ? layout.num_microbatches() : 1;
      stage.formula_bytes = share * (static_cast<double>(stage.gathers * layout.element_size()) +
                                     static_cast<double>(stage.reduces) * wire);
      stage.predicted_bytes = sent_for(program, staged, ranks[i], kShardOnly | kPartOfTokens);
      of_ranks[i].push_back(stage);
    }
  }
  return of_ranks;
}

ReplicaTraffic replica_traffic(const Program& program, const Layout& layout, int rank) {
  const double replicas = layout.mesh.degree(mesh::Axis::kDpReplicate);
  return {.formula_bytes = 2 * (replicas - 1) / replicas * 4 * static_cast<double>(parameters_of(layout, rank)) / layout.shards(),
          .predicted_bytes = sent_for(program, layout, rank, kPartOfCopies)};
}

Ledger predict_ledger(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const RepeatedCalls& repeated : repeated_calls(layout, program, rank))
    for (const CallOfRank& planned : repeated.calls)
      ledger.add(planned.key, payload(planned.call), predicted_sends(planned.call, planned.group_rank), repeated.times);
  return ledger;
}

std::vector<RepeatedCalls> repeated_calls(const Layout& layout, const Program& program, int rank) {
  return calls_of(layout, program, rank, [](const Action&) { return true; });
}

int64_t sent_bytes(const CallOfRank& planned) {
  int64_t sent = 0;
  for (const auto& [peer, bytes] : predicted_sends(planned.call, planned.group_rank)) sent += bytes;
  return sent;
}

double ring_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * gradient_bytes;
}

double server_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) * gradient_bytes;
}

}  // namespace lockstep::program
