#include "lockstep/program/predict/traffic.h"

#include <array>
#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/passes/build.h"

namespace lockstep::program {
namespace {

// What the rank sends for actions of these kinds.
int64_t sent_for(const Program& program, const Layout& layout, int rank, std::initializer_list<ActionKind> kinds) {
  Program part{.ranks = std::vector<std::vector<Action>>(program.ranks.size()), .buckets = program.buckets};
  for (const Action& action : program.list(rank))
    for (ActionKind kind : kinds)
      if (action.kind == kind) part.ranks[static_cast<size_t>(rank)].push_back(action);
  return predict_ledger(layout, part, rank).sent_total();
}

// Site, collective, axis and algorithm; size of the group; whether this rank is its root.
using CallKind = std::tuple<LedgerKey, size_t, bool>;
// Calls and bytes of each.
using CallKinds = std::map<CallKind, std::pair<int64_t, int64_t>>;

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce || collective == Collective::kGather ||
         collective == Collective::kScatter;
}

// All microbatches make the same calls: each action is asked once.
CallKinds call_kinds(const Program& program, const Layout& layout, int rank, bool numbered) {
  std::vector<std::pair<Action, int64_t>> actions;
  std::map<std::array<int, 5>, size_t> known;
  for (Action action : program.list(rank)) {
    action.microbatch = 0;
    const std::array<int, 5> key = {static_cast<int>(action.kind), action.stage, action.layer, action.bucket, action.unit};
    const auto [entry, is_new] = known.try_emplace(key, actions.size());
    if (is_new) actions.emplace_back(action, 0);
    actions[entry->second].second += 1;
  }
  CallKinds kinds;
  for (const auto& [action, times] : actions)
    for (PlannedCall& planned : planned_calls(layout, program, rank, action)) {
      if (layout.shards() > 1 && planned.key.site == "reduce_partial") continue;
      if (!numbered) planned.key.site = site_kind(planned.key.site);
      const bool root = has_root(planned.call.collective) && planned.call.root == planned.group_rank;
      auto& [count, bytes] = kinds[{planned.key, planned.call.group.size(), root}];
      count += times;
      bytes += times * payload(planned.call);
    }
  return kinds;
}

int64_t gathers(const Layout& layout) {
  if (layout.zero < 3) return 1;
  const int64_t microbatches = layout.num_microbatches();
  const bool stays = !layout.reshard_after_forward && (layout.pipeline.ranks == 1 || !layout.reshard_after_microbatch);
  if (stays) return layout.reshard_after_microbatch ? microbatches : 1;
  return layout.reshard_after_microbatch ? 2 * microbatches : microbatches + 1;
}

}  // namespace

std::string site_kind(const std::string& site) {
  const std::string blocks = "blocks.";
  const size_t at = site.find(blocks);
  if (at == std::string::npos) return site.substr(0, site.find_last_not_of("0123456789 ") + 1);
  const size_t behind = site.find_first_not_of("0123456789", at + blocks.size());
  return cat(site.substr(0, at), blocks, "*", behind == std::string::npos ? "" : site.substr(behind));
}

std::vector<std::vector<int>> alike_ranks(const Program& program, const Layout& layout, const std::vector<int>& ranks,
                                          bool numbered) {
  std::map<CallKinds, size_t> known;
  std::vector<std::vector<int>> groups;
  // Data ranks that do the same for the same part of the model make the same calls, but for a server and its workers.
  std::map<std::array<int, 3>, std::pair<int, size_t>> parts;  // first rank and its group
  for (const int rank : ranks) {
    const mesh::PerAxis at = layout.mesh.coordinates(rank);
    const bool root = layout.mesh.group_rank(rank, layout.tokens()) == kServerRank;
    const auto part = parts.find({at[mesh::Axis::kPp], at[mesh::Axis::kTp], root});
    size_t group = 0;
    if (part != parts.end() && program.list(part->second.first) == program.list(rank)) {
      group = part->second.second;
    } else {
      group = known.try_emplace(call_kinds(program, layout, rank, numbered), groups.size()).first->second;
      parts[{at[mesh::Axis::kPp], at[mesh::Axis::kTp], root}] = {rank, group};
    }
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(rank);
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
    return sent_for(program, kind, rank, {ActionKind::kReduceGrad, ActionKind::kPush, ActionKind::kPull});
  };
  const Program reduces = make_program(ring), pushes = build_program(server);
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
      stage.predicted_bytes = sent_for(program, staged, ranks[i], {ActionKind::kUnshard, ActionKind::kReduceGrad});
      of_ranks[i].push_back(stage);
    }
  }
  return of_ranks;
}

ReplicaTraffic replica_traffic(const Program& program, const Layout& layout, int rank) {
  const double replicas = layout.mesh.degree(mesh::Axis::kDpReplicate);
  return {.formula_bytes = 2 * (replicas - 1) / replicas * 4 * static_cast<double>(parameters_of(layout, rank)) / layout.shards(),
          .predicted_bytes = sent_for(program, layout, rank, {ActionKind::kReduceShard})};
}

Ledger predict_ledger(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const PlannedCall& planned : planned_calls(layout, program, rank))
    ledger.add(planned.key, payload(planned.call), predicted_sends(planned.call, planned.group_rank));
  return ledger;
}

double ring_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * gradient_bytes;
}

double server_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) * gradient_bytes;
}

}  // namespace lockstep::program
