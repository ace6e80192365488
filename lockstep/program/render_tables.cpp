#include <algorithm>
#include <cstdio>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/program/memory.h"
#include "lockstep/program/predict.h"
#include "lockstep/program/render.h"

namespace lockstep::program {
namespace {

using Row = std::vector<std::string>;

// Columns as wide as their longest entry; those from `first_number` on are right-aligned.
std::string table(const std::vector<Row>& rows, size_t first_number, size_t numbers) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = i >= first_number && i < first_number + numbers;
      line += (i == 0 ? "" : "  ") + (number ? pad_left(row[i], widths[i]) : pad_right(row[i], widths[i]));
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// Bytes as the literature counts them: powers of ten.
std::string decimal_bytes(auto count) {
  double bytes = static_cast<double>(count);
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text,
                unit == 0 || bytes >= 100 ? "%.0f %s"
                : bytes >= 10             ? "%.1f %s"
                                          : "%.2f %s",
                bytes, units[unit]);
  return text;
}

std::string left_out(size_t shown, size_t ranks) {
  return shown < ranks ? cat("... ", ranks - shown, " more ranks; --rank R shows any of them\n") : "";
}

constexpr MemoryCategory kCategories[] = {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                          MemoryCategory::kOptimizer, MemoryCategory::kActivations,
                                          MemoryCategory::kBuffers};

// "reduce_grad bucket 7" -> "reduce_grad bucket", "blocks.3.mlp.down forward" -> "blocks.*.mlp.down forward".
std::string without_number(const std::string& site) {
  const std::string blocks = "blocks.";
  if (site.starts_with(blocks)) return blocks + "*" + site.substr(site.find('.', blocks.size()));
  return site.substr(0, site.find_last_not_of("0123456789 ") + 1);
}

// What the rank sends for gradients and parameters, loss and norm aside.
int64_t sent_for_buckets(const Layout& layout, int rank) {
  const Program program = build_program(layout);
  int64_t sent = 0;
  for (const Action& action : program.ranks.at(static_cast<size_t>(rank))) {
    if (action.bucket < 0) continue;
    for (const PlannedCall& planned : planned_calls(layout, program, rank, action))
      for (const auto& [peer, bytes] : predicted_sends(planned.call, planned.group_rank)) sent += bytes;
  }
  return sent;
}

}  // namespace

std::string layout_table(const Program& program, const Layout& layout, const std::vector<int>& ranks, int max_rows) {
  const int num_layers = static_cast<int>(arch::layer_table(layout.model).size());
  const size_t shown = std::min(static_cast<size_t>(max_rows), ranks.size());
  std::vector<Row> rows = {{"rank", "coordinates", "layers", "sequences"}};
  for (MemoryCategory category : kCategories) rows[0].emplace_back(category_name(category));
  rows[0].emplace_back("total");
  for (size_t i = 0; i < shown; ++i) {
    const int rank = ranks[i];
    const SampleRange first = microbatch_samples(layout, rank, 0);
    const SampleRange last = microbatch_samples(layout, rank, layout.num_microbatches() - 1);
    std::string coordinates = layout.mesh.describe(rank);
    if (layout.server_mode() && layout.owns_optimizer(rank))
      coordinates += " (server)";
    Row row = {cat(rank), coordinates, cat(layer_label(0, num_layers), "..", layer_label(num_layers - 1, num_layers)),
               cat(first.begin, "..", last.end - 1)};
    const MemoryBytes bytes = predict_memory(layout, program, rank);
    for (MemoryCategory category : kCategories) row.push_back(bytes_text(bytes[category]));
    row.push_back(bytes_text(bytes.total()));
    rows.push_back(std::move(row));
  }
  return table(rows, 4, std::size(kCategories) + 1) + left_out(shown, ranks.size());
}

std::string memory_table(const Program& program, const Layout& layout, int rank) {
  const MemoryBytes bytes = predict_memory(layout, program, rank);
  const bool bf16 = layout.precision == config::Precision::kBf16;
  const bool owner = bytes[MemoryCategory::kOptimizer] > 0;
  const int64_t numel = arch::flat_layout(layout.param_table(rank)).numel;
  const std::string made_of[] = {
      cat(numel, " parameters x ", layout.element_size(), bf16 ? " (bf16)" : " (fp32)"),
      cat(numel, " parameters x 4 (fp32)"),
      !owner ? std::string("held by the server")
             : cat(numel, " parameters x ",
                   bf16 ? "(4 + 4 + 4): two moments and the fp32 master weights" : "(4 + 4): two moments"),
      cat("most that is alive between two actions: kept for backward, passed on, token ids of ",
          layout.num_microbatches(), layout.num_microbatches() == 1 ? " microbatch" : " microbatches"),
      "largest workspace inside an action"};
  std::vector<Row> rows;
  for (size_t i = 0; i < std::size(kCategories); ++i) {
    rows.push_back({std::string(category_name(kCategories[i])), bytes_text(bytes[kCategories[i]]), made_of[i]});
  }
  rows.push_back({"total", bytes_text(bytes.total())});
  return cat("rank ", rank, "\n", table(rows, 1, 1));
}

std::string kept_table(const Layout& layout, int rank) {
  constexpr arch::Recompute kChoices[] = {arch::Recompute::kNone, arch::Recompute::kSelective, arch::Recompute::kFull};
  const arch::CostInput input{.batch = layout.micro_batch,
                              .seq_len = layout.seq_len,
                              .element_size = layout.element_size(),
                              .threads = layout.threads,
                              .tensor = layout.tensor_shard(rank)};
  std::vector<Row> rows = {{"a block keeps", "none", "selective", "full"}};
  int64_t sums[std::size(kChoices)] = {}, blocks[std::size(kChoices)] = {};
  for (const arch::KeptPart& part : arch::block_kept_parts(layout.model, input)) {
    Row& row = rows.emplace_back(Row{"  " + part.name});
    for (size_t i = 0; i < std::size(kChoices); ++i) {
      row.push_back(part.kept_by(kChoices[i]) ? bytes_text(part.bytes) : "again");
      if (part.kept_by(kChoices[i])) sums[i] += part.bytes;
    }
  }
  for (int64_t i = 0; i < layout.model.layers; ++i)
    blocks[static_cast<size_t>(layout.recompute_of(static_cast<int>(i) + 1))] += 1;
  Row sum{"  in all"}, count{"blocks of this layout"};
  for (size_t i = 0; i < std::size(kChoices); ++i) sum.push_back(bytes_text(sums[i])), count.push_back(cat(blocks[i]));
  rows.insert(rows.end(), {sum, count});
  return table(rows, 1, std::size(kChoices));
}

std::string ledger_table(const Program& program, const Layout& layout, int rank, bool buckets) {
  std::map<LedgerKey, LedgerEntry> entries;
  std::vector<LedgerKey> order;  // as the program comes to them
  for (const Action& action : program.ranks.at(static_cast<size_t>(rank))) {
    for (PlannedCall& planned : planned_calls(layout, program, rank, action)) {
      if (!buckets) planned.key.site = without_number(planned.key.site);
      if (!entries.contains(planned.key)) order.push_back(planned.key);
      LedgerEntry& entry = entries[planned.key];
      entry.count += 1;
      entry.payload += payload(planned.call);
      for (const auto& [peer, bytes] : predicted_sends(planned.call, planned.group_rank)) entry.sent[peer] += bytes;
    }
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
  Layout ring = layout, server = layout;
  ring.data_parallel = config::DataParallel::kRing;
  server.data_parallel = config::DataParallel::kParameterServer;
  // Every link of the ring carries what its rank sends; the workers of a server are all alike.
  const int worker = n > 1 ? layout.mesh.group(0, mesh::kDataAxes)[1] : 0;
  const double ring_predicted = static_cast<double>(sent_for_buckets(ring, 0));
  const double server_predicted =
      static_cast<double>((n - 1) * sent_for_buckets(server, worker) + sent_for_buckets(server, 0));
  const double fp16 = 2 * parameters;
  const std::vector<Row> rows = {
      {"", "formula", "fp32 gradients", "this layout predicts", "fp16 gradients"},
      {"gradients of one rank", "S", decimal_bytes(gradient_bytes), "", decimal_bytes(fp16)},
      {"ring: each link", "2(n-1)/n S", decimal_bytes(ring_link_bytes(gradient_bytes, n)),
       decimal_bytes(ring_predicted), decimal_bytes(ring_link_bytes(fp16, n))},
      {"parameter server: the server's link", "2(n-1) S", decimal_bytes(server_link_bytes(gradient_bytes, n)),
       decimal_bytes(server_predicted), decimal_bytes(server_link_bytes(fp16, n))},
  };
  return cat("one synchronisation of the gradients of ", here, " parameters over n = ", n,
             n == 1 ? " rank" : " ranks", "\n", table(rows, 2, 3));
}

}  // namespace lockstep::program
