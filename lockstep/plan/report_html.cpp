#include "lockstep/plan/drawing.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/plan/bubble.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>)";
constexpr std::string_view kStyle = R"(</title>
<style>
:root{color-scheme:light dark}
body{margin:0 auto;padding:24px 28px 40px;max-width:1240px;background:#fff;color:#1c1f24;font:15px/1.5 system-ui,"DejaVu Sans",Verdana,sans-serif}
h1{font-size:22px;margin:0 0 2px}h2{font-size:17px;margin:30px 0 8px}.q{color:#5a626e}p{margin:6px 0}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0 8px}.card{border:1px solid #d5d9df;border-radius:8px;padding:10px 16px;min-width:130px}
.card b{display:block;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}.card span{color:#5a626e;font-size:13px}
.gantt{overflow-x:auto;border:1px solid #d5d9df;border-radius:8px;margin:10px 0}.gantt svg{display:block;max-width:100%;height:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}th,td{padding:4px 14px;text-align:right;border-bottom:1px solid #d5d9df}
th{font-weight:600}th:first-child,td:first-child,.l{text-align:left}
pre{overflow-x:auto;font:12px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;background:#f3f4f6;padding:12px;border-radius:8px}
details{margin:14px 0}summary{cursor:pointer}
@media screen and (prefers-color-scheme:dark){body{background:#15181d;color:#e4e7eb}.q,.card span{color:#9aa3af}
.card,.gantt,th,td{border-color:#2c323b}pre{background:#1d2127}}
@media print{body{max-width:none;padding:0;font-size:11px}.gantt,.card{break-inside:avoid}details{display:none}}
@page{size:landscape;margin:12mm}
</style>
</head>
<body>
)";
constexpr std::string_view kEnd = "</body>\n</html>\n";

OrderedJson use_json(const Utilisation& use) {
  return {{"step", use.step_seconds}, {"bubble", use.bubble()}, {"idle", use.idle()}, {"busy", use.busy}};
}

OrderedJson simulation_json(const Simulation& simulation) {
  OrderedJson json = use_json(simulation.use);
  json["period"] = simulation.period;
  return json;
}

class Report {
 public:
  explicit Report(const ReportInput& input) : in_(input) {
    if (in_.measured) measured_ = utilisation(in_.program, in_.measured->spans);
    for (int rank = 0; rank < in_.program.world_size(); ++rank)
      memory_.push_back(program::memory_timeline(in_.layout, in_.program, rank));
  }

  std::string text() const {
    const std::string title = in_.title.empty() ? "A training step" : in_.title;
    return page_html(title, in_.layout, cat(cards(), "<p>", verdict(), "</p>\n", pictures(), calls_table(), "<h2>Ranks</h2>\n", rank_table(), text_twin(), data()));
  }

 private:
  const Utilisation& use() const { return in_.simulation.use; }
  std::string time(double seconds) const { return time_text(seconds, in_.times.in_units); }
  program::ScheduleInput schedule() const { return program::schedule_of(in_.layout); }

  std::string cards() const {
    std::string html = "<div class=\"cards\">";
    const auto card = [&](const std::string& value, const std::string& name) {
      html += cat("<div class=\"card\"><b>", value, "</b><span>", escaped(name), "</span></div>\n");
    };
    card(time(use().step_seconds), "step, simulated");
    if (in_.layout.pipeline.post_validation) card(time(in_.simulation.period), "where one follows the other");
    if (in_.measured) card(time_text(measured_.step_seconds, false), cat("step ", in_.measured->step, ", measured"));
    card(percent_text(use().bubble()), "bubble, simulated");
    if (const auto formula = bubble_share(schedule()))
      card(percent_text(formula->value), cat("bubble, ", formula->formula, " of equal stages"));
    if (in_.measured) card(percent_text(measured_.bubble()), "bubble, measured");
    if (in_.measured && in_.measured->overhead.actions > 0)
      card(time_text(in_.measured->overhead.mean, false), "of the engine per action");
    int64_t most = 0;
    for (const program::MemoryTimeline& timeline : memory_) most = std::max(most, peak_bytes(timeline));
    card(program::bytes_text(most), "device memory, predicted");
    return html + "</div>\n";
  }

  // What the numbers say, and what would help.
  std::string verdict() const {
    const program::ScheduleInput now = schedule();
    std::string text = cat("Times of the simulation: ", escaped(in_.times.source), ". ");
    if (in_.measured && measured_.step_seconds > 0) {
      const double off = use().step_seconds / measured_.step_seconds - 1;
      text += cat("The simulated step is ", decimal(std::abs(100 * off), 1), off < 0 ? " % shorter" : " % longer", " than the measured one. ");
    }
    if (now.ranks == 1) return text + "One pipeline rank: nothing waits for another stage.";
    program::ScheduleInput more = now;
    more.microbatches *= 2;
    const auto share = bubble_share(now), less = bubble_share(more);
    if (share && less && less->value < share->value)
      text += cat("Of the time between its first and last action a rank waits ", percent_text(use().bubble()), "; with ", more.microbatches,
                  " microbatches instead of ", now.microbatches, " the formula says ", percent_text(less->value), " instead of ", percent_text(share->value), ".");
    return text;
  }

  std::string pictures() const {
    GanttOptions options{.title = cat("Simulated: ", program::schedule_name(in_.layout.pipeline.kind), ", ", time(use().step_seconds)),
                         .in_units = in_.times.in_units,
                         .id = "simulated",
                         .critical_path = &in_.simulation.critical_path,
                         .memory = memory_};
    if (in_.measured && !in_.times.in_units) options.seconds = std::max(use().step_seconds, measured_.step_seconds);
    std::string html = cat("<h2>The step</h2>\n<div class=\"gantt\">", gantt_svg(in_.program, in_.layout, in_.simulation.spans, options), "</div>\n");
    if (!in_.measured) return html;
    options.title = cat("Measured: step ", in_.measured->step, ", ", time_text(measured_.step_seconds, false));
    options.in_units = false;
    options.id = "measured";
    options.critical_path = nullptr;
    options.calls = &in_.measured->calls;
    return cat(html, "<div class=\"gantt\">", gantt_svg(in_.program, in_.layout, in_.measured->spans, options), "</div>\n");
  }

  std::string rank_table() const {
    const bool coordinates = in_.layout.mesh.world_size() > 1;
    std::string html = cat("<table>\n<tr><th>rank</th>", coordinates ? "<th class=\"l\">coordinates</th>" : "", "<th>busy</th><th>idle</th>",
                           in_.measured ? "<th>busy, measured</th><th>idle, measured</th>" : "", "<th>memory peak</th></tr>\n");
    for (int rank = 0; rank < static_cast<int>(memory_.size()); ++rank) {
      const auto index = static_cast<size_t>(rank);
      html += cat("<tr><td>", rank, "</td>");
      if (coordinates) html += cat("<td class=\"l\">", escaped(in_.layout.mesh.describe(rank)), "</td>");
      html += cat("<td>", time(use().busy[index]), "</td><td>", percent_text(use().idle(rank)), "</td>");
      if (in_.measured) html += cat("<td>", time_text(measured_.busy[index], false), "</td><td>", percent_text(measured_.idle(rank)), "</td>");
      html += cat("<td>", program::bytes_text(peak_bytes(memory_[index])), "</td></tr>\n");
    }
    return html + "</table>\n";
  }

  // What runs beside the products of a layer, and what of it does not.
  std::string calls_table() const {
    const std::vector<CallTotals> totals = in_.measured ? call_totals(in_.measured->calls) : std::vector<CallTotals>();
    if (totals.empty()) return "";
    std::string html =
        "<h2>Communication inside layers, measured, of a rank on average</h2>\n<table>\n<tr><th>call</th><th>calls</th><th>they run</th>"
        "<th>waited for</th><th>of the step</th><th>hidden</th></tr>\n";
    for (const CallTotals& row : totals)
      html += cat("<tr><td>", escaped(row.what), "</td><td>", decimal(row.calls, 1), "</td><td>", time_text(row.seconds, false), "</td><td>",
                  time_text(row.waited, false), "</td><td>", percent_text(row.waited / measured_.step_seconds), "</td><td>",
                  percent_text(row.hidden()), "</td></tr>\n");
    return html + "</table>\n";
  }

  std::string text_twin() const {
    const double unit = in_.times.in_units ? 1 : use().step_seconds / 60;
    if (unit <= 0) return "";
    return cat("<details><summary>The simulated step as text, a column every ", time(unit), "</summary>\n<pre>",
               escaped(grid_text(in_.program, in_.layout, in_.simulation.spans, {.unit = unit, .width = 160})), "</pre></details>\n");
  }

  std::string data() const {
    std::string text = step_numbers(in_).dump();
    for (size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
    return cat("<script type=\"application/json\" id=\"data\">", text, "</script>\n");
  }

  const ReportInput& in_;
  Utilisation measured_;
  std::vector<program::MemoryTimeline> memory_;
};

}  // namespace

OrderedJson step_numbers(const ReportInput& input) {
  const program::ScheduleInput schedule = program::schedule_of(input.layout);
  OrderedJson json = {{"layout", program::describe(input.layout)},
                      {"schedule", program::schedule_name(schedule.kind)},
                      {"ranks", schedule.ranks},
                      {"virtual_stages", schedule.virtual_stages},
                      {"microbatches", schedule.microbatches},
                      {"unit", input.times.in_units ? "unit" : "s"},
                      {"times", input.times.source},
                      {"simulated", simulation_json(input.simulation)}};
  if (const auto formula = bubble_share(schedule)) json["bubble_formula"] = formula->value;
  if (input.measured) {
    json["measured"] = use_json(utilisation(input.program, input.measured->spans));
    json["measured"]["number"] = input.measured->step;
    const Overhead& found = input.measured->overhead;
    json["measured"]["overhead"] = {
        {"actions", found.actions}, {"mean", found.mean}, {"median", found.median}, {"worst_rank", found.worst_rank}};
    for (const CallTotals& row : call_totals(input.measured->calls))
      json["measured"]["inside_layers"].push_back({{"call", row.what}, {"calls", row.calls}, {"seconds", row.seconds}, {"waited", row.waited}});
  }
  if (input.typical) {
    json["typical"] = simulation_json(input.typical->simulation);
    json["typical"]["steps"] = input.typical->steps;
  }
  return json;
}

std::string report_html(const ReportInput& input) { return Report(input).text(); }

std::string page_html(std::string_view title, const program::Layout& layout, std::string_view body) {
  return cat(kHead, escaped(title), kStyle, "<h1>", escaped(title), "</h1>\n<p class=\"q\">", escaped(arch::describe(layout.model)), "<br>",
             escaped(program::describe(layout)), "</p>\n", body, kEnd);
}

std::string with_section(std::string page, std::string_view name, std::string_view section) {
  const std::string begin = cat("<!-- ", name, " -->\n"), end = cat("<!-- end of ", name, " -->\n"), all = cat(begin, section, end);
  const size_t from = page.find(begin), to = page.find(end);
  if (from != std::string::npos && to != std::string::npos && from < to) return page.replace(from, to + end.size() - from, all);
  const size_t behind = page.rfind(kEnd);
  return page.insert(behind == std::string::npos ? page.size() : behind, all);
}

}  // namespace lockstep::plan
