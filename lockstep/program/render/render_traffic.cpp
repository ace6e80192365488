#include <algorithm>
#include <array>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

// "embed 1, b0..b11 2, head 1": how often a rank gathers each unit in a step.
std::string gathers_text(const Program& program, const Layout& layout, int rank) {
  const int num_layers = layout.num_layers();
  std::map<int, int> times;
  EffectTable effects(layout, program.buckets, rank);
  for (const Action& action : program.list(rank)) {
    if (computes(action.kind) || !effects.of(action).collective) continue;
    for (const Touch& touch : effects.of(action).touches)
      if (touch.what == Resource::kParameters && touch.how == Access::kUpdate) times[touch.index] += 1;
  }
  std::vector<std::string> texts;
  for (auto unit = times.begin(); unit != times.end();) {
    auto last = unit;
    while (std::next(last) != times.end() && std::next(last)->second == unit->second) ++last;
    texts.push_back(cat(label_range(unit->first, last->first, num_layers), " ", unit->second));
    unit = std::next(last);
  }
  return join(texts, ", ");
}

std::string numbers_text(const std::vector<int>& numbers, const char* one, const char* several) {
  return cat(numbers.size() == 1 ? one : several, " ", ranges_text(numbers));
}

// What the ranks of one coordinate on pp send that make the same calls, by purpose; kLayer for all that goes over tp.
struct StageSends {
  std::vector<int> ranks;
  std::map<Purpose, int64_t> bytes{};
  int64_t experts = 0;  // of layers, among the ranks that share their experts
  int64_t all = 0;
};

std::vector<StageSends> stage_sends(const Program& program, const Layout& layout, const std::vector<int>& ranks) {
  std::vector<StageSends> found;
  for (const std::vector<int>& alike : alike_ranks(program, layout, ranks, false))
    for (const int rank : alike) {
      const bool same_stages = rank != alike.front() && layout.pipeline_rank(found.back().ranks.front()) == layout.pipeline_rank(rank);
      if (!same_stages) found.push_back({.ranks = {}});
      found.back().ranks.push_back(rank);
    }
  for (StageSends& sends : found)
    for (const RepeatedCalls& repeated : repeated_calls(layout, program, sends.ranks.front()))
      for (const CallOfRank& planned : repeated.calls) {
        const LedgerKey& key = planned.key;
        const bool over_tp = key.axis == "tp" || key.axis == "kv";
        const int64_t sent = repeated.times * predicted_bytes(planned.call, planned.group_rank);
        if (key.id.purpose == Purpose::kLayer && !over_tp)
          sends.experts += sent;
        else
          sends.bytes[over_tp ? Purpose::kLayer : key.id.purpose] += sent;
        sends.all += sent;
      }
  return found;
}

std::string ledger_table(const Program& program, const Layout& layout, int rank, bool buckets) {
  Ledger ledger;
  std::vector<LedgerKey> order;  // as the program comes to them
  for (RepeatedCalls& repeated : repeated_calls(layout, program, rank))
    for (CallOfRank& planned : repeated.calls) {
      if (!buckets) planned.key.id = planned.key.id.of_every_owner();
      if (!ledger.entries().contains(planned.key)) order.push_back(planned.key);
      ledger.add(planned.key, payload(planned.call), predicted_sends(planned.call, planned.group_rank), repeated.times);
    }
  if (order.empty()) return cat("rank ", rank, " communicates nothing: it is alone\n");
  std::string title = cat("rank ", rank);
  if (layout.pipeline.ranks > 1)
    title += cat(", ", numbers_text(layout.pipeline.stages_of(layout.pipeline_rank(rank)), "stage", "stages"), ": ",
                 layers_text(layout, rank));
  std::vector<Row> rows = {{"site", "collective", "axis", "algorithm", "calls", "payload", "sent", "on the links"}};
  for (const LedgerKey& key : order) {
    const LedgerEntry& entry = ledger.entries().at(key);
    std::vector<std::string> links;
    for (const auto& [peer, bytes] : entry.sent) {
      if (links.size() < 4) links.push_back(cat("to ", peer, ": ", decimal_bytes(bytes)));
    }
    if (entry.sent.size() > 4) links.push_back(cat("and ", entry.sent.size() - 4, " more"));
    rows.push_back({call_text(key.id), std::string(collective_name(key.collective)), key.axis,
                    std::string(algorithm_name(key.algorithm)), cat(entry.count), decimal_bytes(entry.payload),
                    decimal_bytes(entry.sent_total()), join(links, ", ")});
  }
  return cat(title, "\n", table(rows, 4, 3));
}

std::string times(int64_t count) { return count == 1 ? std::string("P") : cat(count, " P"); }

// A row per stage of ZeRO, of one rank.
std::string zero_table(const std::vector<StageTraffic>& stages, int zero) {
  const char* names[] = {"", "optimizer state", "and gradients", "and parameters"};
  std::vector<Row> rows = {{"", "gathers", "reduces", "together", "formula", "this layout predicts"}};
  for (const StageTraffic& stage : stages)
    rows.push_back({cat(stage.zero == zero ? "* " : "  ", "zero ", stage.zero, ": ", names[stage.zero]),
                    times(stage.gathers), times(stage.reduces), times(stage.gathers + stage.reduces),
                    decimal_bytes(stage.formula_bytes), decimal_bytes(stage.predicted_bytes)});
  return table(rows, 1, 5);
}

// A row per stage of the pipeline.
std::string zero_table(const Layout& layout, const std::vector<int>& ranks, const std::vector<std::vector<StageTraffic>>& traffic) {
  std::vector<Row> rows = {{"rank", "parameters P"}};
  for (const StageTraffic& stage : traffic[0]) {
    rows[0].push_back(cat(stage.zero == layout.zero ? "* " : "", "zero ", stage.zero, ": ", times(stage.gathers + stage.reduces)));
    rows[0].emplace_back("predicted");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    rows.push_back({cat(ranks[i]), cat(parameters_of(layout, ranks[i]))});
    for (const StageTraffic& stage : traffic[i]) {
      rows.back().push_back(decimal_bytes(stage.formula_bytes));
      rows.back().push_back(decimal_bytes(stage.predicted_bytes));
    }
  }
  return table(rows, 0, rows[0].size());
}

}  // namespace

std::string ledger_tables(const Program& program, const Layout& layout, const std::vector<int>& ranks, bool buckets) {
  std::string text;
  const bool own_partial = layout.shards() > 1 && layout.mesh.degree(mesh::Axis::kTp) > 1;
  for (const std::vector<int>& alike : alike_ranks(program, layout, ranks, buckets)) {
    text += ledger_table(program, layout, alike.front(), buckets);
    if (alike.size() > 1)
      text += cat(numbers_text({alike.begin() + 1, alike.end()}, "rank", "ranks"), ": as on rank ", alike.front(),
                  ", each with its own peers", own_partial ? "; reduce_partial: the part of its shard" : "", "\n");
    text += "\n";
  }
  return text;
}

std::string stages_table(const Program& program, const Layout& layout, const std::vector<int>& ranks) {
  std::vector<StageSends> stages = stage_sends(program, layout, ranks);
  std::vector<Row> rows = {{"ranks", "stages", "layers", "parameters"}};
  std::vector<Purpose> columns;
  for (const Purpose purpose : {Purpose::kSendForward, Purpose::kSendBackward, Purpose::kLayer, Purpose::kUnshard, Purpose::kReduceGrad,
                                Purpose::kReduceShard, Purpose::kPush, Purpose::kPull, Purpose::kReduceTied})
    if (std::any_of(stages.begin(), stages.end(), [&](StageSends& sends) { return sends.bytes[purpose] > 0; }))
      columns.push_back(purpose);
  for (const Purpose purpose : columns) rows[0].emplace_back(purpose_text(purpose));
  const bool experts = std::ranges::any_of(stages, [](const StageSends& sends) { return sends.experts > 0; });
  if (experts) rows[0].push_back(group_name(layout, group_over(layout, layout.expert_ranks(), Channel::kExperts)));
  rows[0].emplace_back("in all");
  for (StageSends& sends : stages) {
    const int rank = sends.ranks.front();
    rows.push_back({ranges_text(sends.ranks), ranges_text(layout.pipeline.stages_of(layout.pipeline_rank(rank))),
                    layers_text(layout, rank), cat(parameters_of(layout, rank))});
    for (const Purpose purpose : columns)
      rows.back().push_back(sends.bytes[purpose] == 0 ? "" : decimal_bytes(sends.bytes[purpose]));
    if (experts) rows.back().push_back(sends.experts == 0 ? "" : decimal_bytes(sends.experts));
    rows.back().push_back(decimal_bytes(sends.all));
  }
  return cat("what a rank of each stage sends in a step\n", table(rows, 3, columns.size() + (experts ? 3 : 2)));
}

std::string traffic_summary(const Layout& layout, const std::vector<int>& ranks) {
  const int n = layout.mesh.degree(layout.tokens());
  const std::string over = cat(" over n = ", n, n == 1 ? " rank" : " ranks", "\n");
  const std::vector<ReductionTraffic> predicted = reduction_traffic(layout, ranks);
  const auto formulas = [&](int64_t parameters, double size) {  // S, the ring's link, the server's
    const double bytes = size * static_cast<double>(parameters);
    return std::array{decimal_bytes(bytes), decimal_bytes(ring_link_bytes(bytes, n)), decimal_bytes(server_link_bytes(bytes, n))};
  };
  if (ranks.size() == 1) {
    const int64_t parameters = parameters_of(layout, ranks[0]);
    const auto fp32 = formulas(parameters, 4), fp16 = formulas(parameters, 2);
    return cat("one synchronisation of the gradients of ", parameters, " parameters", over,
               table({{"", "formula", "fp32 gradients", "this layout predicts", "fp16 gradients"},
                      {"gradients of one rank", "S", fp32[0], "", fp16[0]},
                      {"ring: each link", "2(n-1)/n S", fp32[1], decimal_bytes(predicted[0].ring_link), fp16[1]},
                      {"parameter server: the server's link", "2(n-1) S", fp32[2], decimal_bytes(predicted[0].server_link), fp16[2]}},
                     2, 3));
  }
  std::vector<Row> rows = {{"rank", "parameters", "fp32 gradients S", "ring link: 2(n-1)/n S", "predicted",
                            "server's link: 2(n-1) S", "predicted"}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int64_t parameters = parameters_of(layout, ranks[i]);
    const auto fp32 = formulas(parameters, 4);
    rows.push_back({cat(ranks[i]), cat(parameters), fp32[0], fp32[1], decimal_bytes(predicted[i].ring_link), fp32[2],
                    decimal_bytes(predicted[i].server_link)});
  }
  return cat("one synchronisation of the gradients of each stage", over, table(rows, 0, 7));
}

std::string sharding_summary(const Program& program, const Layout& layout, const std::vector<int>& ranks) {
  const int64_t microbatches = layout.num_microbatches();
  const bool bf16 = layout.element_size() == 2, bf16_wire = layout.reduce_precision == config::Precision::kBf16;
  const std::vector<std::vector<StageTraffic>> traffic = sharding_traffic(layout, ranks);
  std::string text = cat("what a rank sends in a step: ", layout.pipeline.ranks > 1 ? "at most " : "",
                         "(S-1)/S of ", layout.pipeline.ranks > 1 ? "its" : "the",
                         " P parameters for each time they are gathered or their gradients reduced\n",
                         "S = ", layout.shards(), " shards, M = ", microbatches, microbatches == 1 ? " microbatch" : " microbatches",
                         "; gathered in ", bf16 ? "bf16" : "fp32", ", reduced in ", bf16_wire ? "bf16" : "fp32", "\n");
  text += ranks.size() == 1 ? zero_table(traffic[0], layout.zero) : zero_table(layout, ranks, traffic);
  const int replicas = layout.mesh.degree(layout.dense_domain().copies);
  for (const int rank : ranks) {
    const std::string of = ranks.size() == 1 ? "" : cat("rank ", rank, ": ");
    if (replicas > 1) {
      const ReplicaTraffic sums = replica_traffic(program, layout, rank);
      text += cat(of, "between the R = ", replicas,
                  " groups, once a step: 2(R-1)/R of the P/S gradients of a shard: ", decimal_bytes(sums.formula_bytes),
                  " by the formula, ", decimal_bytes(sums.predicted_bytes), " predicted\n");
    }
    text += cat(of, "gathers per step of each unit: ", gathers_text(program, layout, rank), "\n");
  }
  return text;
}

}  // namespace lockstep::program
