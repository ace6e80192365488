#include "lockstep/plan/evidence/evidence_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

std::string fixed(double value, int digits, bool with_sign = false) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), with_sign ? "%+.*f" : "%.*f", digits, value);
  return text.data();
}
std::string percent(double share, bool with_sign = false) { return fixed(100 * share, 1, with_sign) + " %"; }
std::string order_text(const OrderStats& order) { return order.pairs == 0 ? "-" : cat(fixed(order.tau, 2), " of ", order.pairs); }
// Four digits: "24.82 s", "0.3241 s".
std::string seconds_text(double seconds) {
  const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(seconds))), 0, 6);
  return fixed(seconds, digits) + " s";
}

class Page {
 public:
  explicit Page(bool markdown) : markdown_(markdown) {}

  void heading(const std::string& text) { text_ += markdown_ ? cat("\n### ", text, "\n\n") : cat("\n", text, "\n"); }
  void line(const std::string& text) { text_ += text + "\n"; }
  // The first row names the columns; `words` columns of text come first, then `numbers`.
  void table(const std::vector<program::Row>& rows, size_t words, size_t numbers) {
    if (!markdown_) {
      text_ += program::table(rows, words, numbers);
      return;
    }
    const auto bars = [&](const program::Row& row) { text_ += cat("| ", join(row, " | "), " |\n"); };
    bars(rows.front());
    program::Row rule(rows.front().size(), "---");
    for (size_t i = words; i < std::min(words + numbers, rule.size()); ++i) rule[i] = "---:";
    bars(rule);
    for (size_t i = 1; i < rows.size(); ++i) bars(rows[i]);
  }
  std::string text() && { return std::move(text_); }

 private:
  bool markdown_;
  std::string text_{};
};

program::Row head_row(const char* name) { return {name, "runs", "median", "P90", "bias", "tau (pairs)", "of one model", "in band"}; }
program::Row row_of(const EvidenceGroup& group) {
  return {group.name.empty() ? "-" : group.name, cat(group.step.rows), percent(group.step.median), percent(group.step.p90),
          percent(group.step.bias, true), order_text(group.order), order_text(group.same_model), percent(group.step.in_band)};
}

void add_groups(Page& page, const char* name, const std::vector<EvidenceGroup>& groups, const EvidenceGroup* all) {
  std::vector<program::Row> rows = {head_row(name)};
  for (const EvidenceGroup& group : groups) rows.push_back(row_of(group));
  if (all) rows.push_back(row_of(*all));
  page.table(rows, 1, 7);
}

void add_memory(Page& page, const Evidence& evidence) {
  std::vector<program::Row> rows = {{"source", "kind", "runs", "median", "worst", "bias"}};
  const auto add = [&](const EvidenceGroup& group) {
    for (const MemoryStats& memory : group.memory)
      rows.push_back({group.name, std::string(memory_kind_name(memory.kind)), cat(memory.rows), percent(memory.median), percent(memory.worst),
                      percent(memory.bias, true)});
  };
  for (const EvidenceGroup& group : evidence.sources) add(group);
  if (rows.size() == 1) return;
  add(evidence.all);
  page.heading("Peak memory");
  page.table(rows, 2, 4);
}

// The largest terms of a step: "products 61 %, bubble 12 %, tensor 9 %".
std::string largest_terms(const Prediction& prediction) {
  constexpr size_t kShown = 3;
  std::vector<NamedTerm> terms(kNamedTerms.begin(), kNamedTerms.end());
  const auto seconds = [&](const NamedTerm& term) { return prediction.breakdown.*term.seconds; };
  std::ranges::sort(terms, [&](const NamedTerm& a, const NamedTerm& b) { return seconds(a) > seconds(b); });
  std::vector<std::string> shown;
  for (size_t i = 0; i < kShown; ++i)
    if (seconds(terms[i]) > 0) shown.push_back(cat(terms[i].name, " ", fixed(100 * seconds(terms[i]) / prediction.seconds, 0), " %"));
  return join(shown, ", ");
}

void add_worst(Page& page, const Evidence& evidence, size_t count) {
  std::vector<const Compared*> rows;
  for (const Compared& row : evidence.rows)
    if (row.prediction.tier != "C") rows.push_back(&row);
  std::ranges::sort(rows, [](const Compared* a, const Compared* b) { return std::abs(a->error()) > std::abs(b->error()); });
  rows.resize(std::min(rows.size(), count));
  if (rows.empty()) return;
  page.heading("Furthest off");
  std::vector<program::Row> table = {{"run", "model", "device", "measured", "predicted", "error", "of which"}};
  for (const Compared* row : rows) {
    const Prediction& prediction = row->prediction;
    table.push_back({prediction.id, prediction.model, cat(prediction.gpus, " x ", prediction.device), seconds_text(row->measured),
                     seconds_text(prediction.seconds), percent(row->error(), true), largest_terms(prediction)});
  }
  page.table(table, 3, 3);
}

void add_refused(Page& page, const Evidence& evidence) {
  if (evidence.refused.empty()) return;
  constexpr size_t kShown = 4;  // ids of a reason
  std::map<std::string, std::vector<std::string>> ids;
  for (const Prediction& prediction : evidence.refused) ids[split(prediction.reason, '\n').front()].push_back(prediction.id);
  page.heading("Not predicted");
  std::vector<program::Row> table = {{"reason", "which", "runs"}};
  for (const auto& [reason, runs] : ids) {
    const std::vector<std::string> first(runs.begin(), runs.begin() + static_cast<int64_t>(std::min(runs.size(), kShown)));
    table.push_back({reason, join(first, ", ") + (runs.size() > kShown ? ", .." : ""), cat(runs.size())});
  }
  page.table(table, 2, 1);
}

}  // namespace

std::string evidence_text(const Evidence& evidence, const EvidenceTextOptions& options) {
  Page page(options.markdown);
  page.line(cat(evidence.rows.size(), " published runs predicted and compared, ", evidence.unmeasured, " predicted that print no step time, ",
                evidence.refused.size(), " not predicted. Errors are predicted / measured - 1; tau is Kendall's, over pairs of a source whose ",
                "times differ by more than 5 %."));
  page.line("The constants of stacks were fitted on most runs of published_runs.json: of other sources expect larger errors.");
  page.heading("Step time by source (tiers A and B)");
  add_groups(page, "source", evidence.sources, &evidence.all);
  page.heading("By device (tiers A and B)");
  add_groups(page, "device", evidence.devices, nullptr);
  page.heading("By tier: A all is known, B something is assumed, C weak");
  add_groups(page, "tier", evidence.tiers, nullptr);
  add_memory(page, evidence);
  add_worst(page, evidence, options.worst);
  add_refused(page, evidence);
  return std::move(page).text();
}

}  // namespace lockstep::plan
