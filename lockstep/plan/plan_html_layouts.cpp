// Which layouts are best, with the flags that launch them, and what speaks against the others.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/findings.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMostShown = 120;

template <typename Enum>
std::string word(Enum value) {
  return config::choices_of(value).at(static_cast<size_t>(value));
}

std::string best_table(const PlanPage& page, const std::vector<const Found*>& found) {
  const bool money = page.cluster.price > 0;
  std::vector<std::string> headers = {"", "<layout", "devices", "step", "band", "tokens/s", "MFU", "bubble", "memory"};
  if (money) headers.emplace_back("1e9 tokens cost");
  TableWriter table(headers, "Fastest first");
  for (size_t i = 0; i < std::min(page.search.best.size(), found.size()); ++i) {
    const Found& one = *found[i];
    const StepEstimate& estimate = one.estimate;
    const std::string flags = launch_flags(one.candidate, rows_limit(one.config, page.search.estimate.imbalance));
    const int devices = devices_of(one.candidate);
    std::vector<std::string> cells = {cat(i + 1), escaped(describe(one.candidate)), cat(devices), seconds_text(estimate.seconds, found[0]->estimate.seconds),
                                      band_text(estimate),
                                      format_count(estimate.seconds > 0 ? estimate.tokens_per_second() : 0), tenths_text(estimate.mfu_causal),
                                      tenths_text(estimate.bubble_share), format_bytes(estimate.most_reserved())};
    const double per_tokens = estimate.tokens > 0 ? step_money(page.cluster, devices, estimate.seconds) / estimate.tokens * 1e9 : 0;
    if (money) cells.push_back(money_text(per_tokens));
    table.raw_row(cells, cat(" class=\"with\" data-i=\"", i, "\""));
    table.below(cat(escaped(one.why), "<details><summary>flags</summary><button type=\"button\" class=\"copy\"", attribute("data-copy", flags),
                    attribute("aria-label", cat("copy the flags of layout ", i + 1)), ">copy</button> <code>", escaped(flags), "</code></details>"),
                cat(" data-i=\"", i, "\""));
  }
  return table.done();
}

std::vector<const Found*> found_best(const SearchResult& search) {
  std::vector<const Found*> best;
  for (const Found& found : search.best) best.push_back(&found);
  return best;
}

std::string rejected_table(const SearchResult& search) {
  if (search.rejected.empty()) return "";
  TableWriter table({"candidates left out because", "how many"}, "What rejected the others");
  std::vector<std::pair<int64_t, Reject>> counts;
  for (const auto& [reason, count] : search.rejected) counts.emplace_back(count, reason);
  std::ranges::stable_sort(counts, std::greater<>{}, &std::pair<int64_t, Reject>::first);
  for (const auto& [count, reason] : counts) table.row({std::string(reject_text(reason)), count_text(count)});
  return table.done();
}

std::string misses(const SearchResult& search) {
  if (search.misses.empty()) return "";
  TableWriter table({"layout", "<what is missing"}, "Nearest misses");
  for (const NearMiss& miss : search.misses) table.row({describe(miss.candidate), miss.text});
  return table.done();
}

std::string why_nots(const std::vector<WhyNot>& why_not) {
  if (why_not.empty()) return "";
  std::string html = "<h3>Why not</h3>\n<dl>\n";
  for (const WhyNot& one : why_not) html += cat("<dt>", escaped(one.layout), "</dt><dd>", escaped(one.text), "</dd>\n");
  return html + "</dl>\n";
}

std::string effort(const SearchResult& search) {
  std::string text = cat("<p>", count_text(search.candidates), " layouts were looked at in ", time_text(search.seconds, false));
  if (search.first_tier_rate > 0) text += cat(", ", format_count(search.first_tier_rate), " a second in the first tier");
  return cat(text, "; the best of them were simulated.</p>\n");
}

}  // namespace

std::vector<const Found*> candidates_shown(const SearchResult& search) {
  std::vector<const Found*> shown;
  for (const std::vector<Found>* list : {&search.best, &search.pareto})
    for (const Found& found : *list) {
      const auto same = [&](const Found* other) { return other->candidate == found.candidate; };
      if (shown.size() < kMostShown && std::ranges::none_of(shown, same)) shown.push_back(&found);
    }
  return shown;
}

std::string launch_flags(const Candidate& candidate, const std::optional<double>& rows) {
  std::vector<std::string> flags = {cat("-n ", devices_of(candidate))};
  const auto set = [&](std::string_view key, const auto& value) { flags.push_back(cat("--", key, "=", value)); };
  set("parallel.tp", candidate.tp);
  set("parallel.sequence_parallel", candidate.sequence_parallel ? "true" : "false");
  set("parallel.pp", candidate.pp);
  set("parallel.schedule", word(candidate.schedule));
  set("parallel.virtual_stages", candidate.virtual_stages);
  set("parallel.cp", candidate.cp);
  set("parallel.ep", candidate.ep);
  set("parallel.etp", candidate.etp);
  set("parallel.zero", candidate.zero);
  if (candidate.zero > 0 && candidate.dp_replicate > 1) set("parallel.dp_replicate", candidate.dp_replicate);
  set("train.micro_batch", candidate.micro_batch);
  set("memory.recompute", word(candidate.recompute));
  if (candidate.offload_optimizer) set("memory.offload", "optimizer");
  if (rows) set("moe.imbalance_limit", number_text(*rows));
  return join(flags, " ");
}

std::string layouts_section(const PlanPage& page) {
  std::string html = "<section id=\"layouts\"><h2>Which layout</h2>\n";
  const std::vector<const Found*> found = candidates_shown(page.search);
  if (page.search.candidates == 0 && found.empty())
    return cat(html, "<p class=\"q\">No search was asked for: the page is of one layout.</p>\n", why_nots(page.why_not), "</section>\n");
  html += effort(page.search);
  if (found.empty()) html += "<p><strong>None of them can run.</strong></p>\n";
  if (!page.search.best.empty()) html += best_table(page, found);
  if (page.search.best.size() > 1) html += cat("<h3>Why they differ</h3>\n", step_bars_svg(found_best(page.search)));
  if (found.size() > 1)
    html += cat("<h3>Time against memory</h3>\n", scatter_svg(page, found), "<h3>All of their choices</h3>\n", parallel_svg(page, found));
  return cat(html, rejected_table(page.search), misses(page.search), why_nots(page.why_not), "</section>\n");
}

}  // namespace lockstep::plan
