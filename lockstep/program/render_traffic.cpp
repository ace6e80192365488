#include <algorithm>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/program/predict.h"
#include "lockstep/program/render.h"
#include "lockstep/program/render_text.h"
#include "lockstep/program/traffic.h"

namespace lockstep::program {
namespace {

// "reduce_grad bucket 7" -> "reduce_grad bucket", "blocks.3.mlp.down forward" -> "blocks.*.mlp.down forward".
std::string without_number(const std::string& site) {
  const std::string blocks = "blocks.";
  const size_t at = site.find(blocks);
  if (at == std::string::npos) return site.substr(0, site.find_last_not_of("0123456789 ") + 1);
  const size_t behind = site.find_first_not_of("0123456789", at + blocks.size());
  return cat(site.substr(0, at), blocks, "*", behind == std::string::npos ? "" : site.substr(behind));
}

// "embed 1, b0..b11 2, head 1": how often a rank gathers each unit in a step.
std::string gathers_text(const Program& program, const Layout& layout) {
  const int num_layers = layout.num_layers();
  std::map<int, int> times;
  for (const Action& action : program.ranks.at(0))
    if (action.kind == ActionKind::kUnshard) times[action.unit] += 1;
  std::vector<std::string> texts;
  for (auto unit = times.begin(); unit != times.end();) {
    auto last = unit;
    while (std::next(last) != times.end() && std::next(last)->second == unit->second) ++last;
    const std::string first = layer_label(unit->first, num_layers), to = layer_label(last->first, num_layers);
    texts.push_back(cat(first == to ? first : cat(first, "..", to), " ", unit->second));
    unit = std::next(last);
  }
  return join(texts, ", ");
}

}  // namespace

std::string ledger_table(const Program& program, const Layout& layout, int rank, bool buckets) {
  std::map<LedgerKey, LedgerEntry> entries;
  std::vector<LedgerKey> order;  // as the program comes to them
  for (PlannedCall& planned : planned_calls(layout, program, rank)) {
    if (!buckets) planned.key.site = without_number(planned.key.site);
    if (!entries.contains(planned.key)) order.push_back(planned.key);
    LedgerEntry& entry = entries[planned.key];
    entry.count += 1;
    entry.payload += payload(planned.call);
    for (const auto& [peer, bytes] : predicted_sends(planned.call, planned.group_rank)) entry.sent[peer] += bytes;
  }
  if (order.empty()) return cat("rank ", rank, " communicates nothing: it is alone\n");
  std::vector<Row> rows = {{"site", "collective", "axis", "algorithm", "calls", "payload", "sent", "on the links"}};
  for (const LedgerKey& key : order) {
    const LedgerEntry& entry = entries[key];
    std::vector<std::string> links;
    for (const auto& [peer, bytes] : entry.sent) {
      if (links.size() < 4) links.push_back(cat("to ", peer, ": ", decimal_bytes(bytes)));
    }
    if (entry.sent.size() > 4) links.push_back(cat("and ", entry.sent.size() - 4, " more"));
    rows.push_back({key.site, std::string(collective_name(key.collective)), key.axis,
                    std::string(algorithm_name(key.algorithm)), cat(entry.count), decimal_bytes(entry.payload),
                    decimal_bytes(entry.sent_total()), join(links, ", ")});
  }
  return cat("rank ", rank, "\n", table(rows, 4, 3));
}

std::string traffic_summary(const Layout& layout) {
  const int n = layout.mesh.degree(mesh::kDataAxes);
  int64_t here = 0;  // of a rank: with tp a part of the model's
  for (const arch::ParamSpec& spec : layout.param_table(0)) here += spec.local_numel();
  const double parameters = static_cast<double>(here);
  const double gradient_bytes = 4 * parameters;
  const ReductionTraffic predicted = reduction_traffic(layout);
  const double fp16 = 2 * parameters;
  const std::vector<Row> rows = {
      {"", "formula", "fp32 gradients", "this layout predicts", "fp16 gradients"},
      {"gradients of one rank", "S", decimal_bytes(gradient_bytes), "", decimal_bytes(fp16)},
      {"ring: each link", "2(n-1)/n S", decimal_bytes(ring_link_bytes(gradient_bytes, n)),
       decimal_bytes(predicted.ring_link), decimal_bytes(ring_link_bytes(fp16, n))},
      {"parameter server: the server's link", "2(n-1) S", decimal_bytes(server_link_bytes(gradient_bytes, n)),
       decimal_bytes(predicted.server_link), decimal_bytes(server_link_bytes(fp16, n))},
  };
  return cat("one synchronisation of the gradients of ", here, " parameters over n = ", n, n == 1 ? " rank" : " ranks",
             "\n", table(rows, 2, 3));
}

std::string sharding_summary(const Program& program, const Layout& layout) {
  const int shards = layout.shards();
  const int64_t microbatches = layout.num_microbatches();
  const bool bf16 = layout.element_size() == 2, bf16_wire = layout.reduce_precision == config::Precision::kBf16;
  std::vector<Row> rows = {{"", "gathers", "reduces", "together", "formula", "this layout predicts"}};
  const auto times = [](int64_t count) { return count == 1 ? std::string("P") : cat(count, " P"); };
  const char* names[] = {"", "optimizer state", "and gradients", "and parameters"};
  for (const StageTraffic& stage : sharding_traffic(layout))
    rows.push_back({cat(stage.zero == layout.zero ? "* " : "  ", "zero ", stage.zero, ": ", names[stage.zero]),
                    times(stage.gathers), times(stage.reduces), times(stage.gathers + stage.reduces),
                    decimal_bytes(stage.formula_bytes), decimal_bytes(stage.predicted_bytes)});
  std::string text = cat(
      "what a rank sends in a step: (S-1)/S of the P parameters for each time they are gathered or "
      "their gradients reduced\n",
      "S = ", shards, " shards, M = ", microbatches, microbatches == 1 ? " microbatch" : " microbatches",
      "; gathered in ", bf16 ? "bf16" : "fp32", ", reduced in ", bf16_wire ? "bf16" : "fp32", "\n", table(rows, 1, 5));
  if (const int replicas = layout.mesh.degree(mesh::Axis::kDpReplicate); replicas > 1) {
    const ReplicaTraffic sums = replica_traffic(program, layout);
    text += cat("between the R = ", replicas,
                " groups, once a step: 2(R-1)/R of the P/S gradients of a shard: ", decimal_bytes(sums.formula_bytes),
                " by the formula, ", decimal_bytes(sums.predicted_bytes), " predicted\n");
  }
  return cat(text, "gathers per step of each unit: ", gathers_text(program, layout), "\n");
}

}  // namespace lockstep::program
