// How long a step is and what of it is what; and the frame of its Gantt.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180, kLeft = 60, kRight = 60;

// Where the truth lies in 9 of 10 cases.
std::string band_svg(const StepEstimate& estimate) {
  const double low = std::min(estimate.low, estimate.seconds), high = std::max(estimate.high, estimate.seconds);
  const double margin = std::max(high - low, estimate.seconds * 0.02) * 0.4, begin = std::max(0.0, low - margin), range = high + margin - begin;
  if (!(range > 0)) return "";
  const auto x = [&](double seconds) { return kLeft + (seconds - begin) / range * (kWidth - kLeft - kRight); };
  SvgWriter svg(kWidth);
  const double step = round_step(range, 8);
  for (double mark = std::ceil(begin / step) * step; mark <= begin + range; mark += step) {
    svg.line("grid", x(mark), 4, x(mark), 34);
    svg.text("q m", x(mark), 48, time_text(mark, false, estimate.seconds));
  }
  svg.rect("band", x(low), 12, x(high) - x(low), 14);
  svg.rect("now", x(estimate.seconds) - 2, 8, 4, 22);
  return svg.done(54, cat("the step: ", band_text(estimate)));
}

std::string band(const StepEstimate& estimate) {
  std::string text = cat("<p>A step takes <strong>", seconds_text(estimate.seconds), "</strong>; in 9 of 10 cases ", band_text(estimate), ".");
  if (!estimate.widest.empty()) text += cat(" Least sure: ", escaped(estimate.widest), ".");
  return cat(text, "</p>\n", band_svg(estimate));
}

// The largest parts first.
std::vector<const Term*> sorted_terms(const Breakdown& breakdown) {
  std::vector<const Term*> sorted;
  for (const Term& term : terms())
    if (breakdown.*term.seconds > 0) sorted.push_back(&term);
  std::ranges::stable_sort(sorted, std::greater<>{}, [&](const Term* term) { return breakdown.*term->seconds; });
  return sorted;
}

std::string less_text(const Term& term) { return term.way_out.empty() ? "." : cat(". Less of it: ", term.way_out, "."); }

std::string breakdown_bar(const Breakdown& breakdown) {
  const double sum = breakdown.sum();
  SvgWriter svg(kWidth);
  double x = 0;
  for (const Term& term : terms()) {
    const double part = breakdown.*term.seconds / sum, width = part * kWidth;
    if (!(width > 0)) continue;
    svg.raw(cat("<g", attribute("data-t", cat(term.label, ": ", seconds_text(breakdown.*term.seconds, sum), ", ", tenths_text(part), " of the step",
                                              less_text(term))), ">"));
    svg.rect(cat("s-", term.name, " edge"), x, 4, width, 34);
    if (width > 8 * static_cast<double>(term.label.size()) + 8) svg.text("m", x + width / 2, 54, term.label);
    svg.raw("</g>\n");
    x += width;
  }
  return cat("<div data-pick=\"share-told\">", svg.done(60, "the step in parts"),
             "<output class=\"told\" id=\"share-told\">Hover, or use the arrow keys in the picture.</output></div>\n");
}

std::string breakdown_table(const Breakdown& breakdown) {
  TableWriter table({"part", "time", "of the step", "<what makes it less"}, "The rank that a step waits for most");
  const double sum = breakdown.sum();
  for (const Term* term : sorted_terms(breakdown)) {
    const double seconds = breakdown.*term->seconds;
    table.raw_row({cat("<svg class=\"key\" width=\"14\" height=\"12\" aria-hidden=\"true\"><rect class=\"s-", term->name,
                       "\" width=\"14\" height=\"12\"/></svg> ",
                       escaped(term->label)),
                   seconds_text(seconds, sum), tenths_text(seconds / sum), escaped(term->way_out)});
  }
  return table.done();
}

std::string limits(const Breakdown& breakdown) {
  const std::vector<const Term*> sorted = sorted_terms(breakdown);
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min<size_t>(3, sorted.size()); ++i)
    named.push_back(cat(sorted[i]->label, " ", tenths_text(breakdown.*sorted[i]->seconds / breakdown.sum())));
  const double waits = breakdown.tensor + breakdown.context + breakdown.experts + breakdown.pipeline + breakdown.data;
  return cat("<p>What limits it: ", escaped(join(named, ", ")), ". Communication that is waited for takes ", tenths_text(waits / breakdown.sum()),
             ", the bubble ", tenths_text(breakdown.bubble / breakdown.sum()), ".</p>\n");
}

std::string gantt(const StepEstimate& estimate) {
  if (estimate.boxes.empty()) return "<p class=\"q\">No drawing of the step was asked for.</p>\n";
  std::string json = gantt_json(estimate);
  // Inside of a script no tag may begin, nor a comment.
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos; at += 6) json.replace(at, 1, "\\u003c");
  return cat(R"(<h3>When what runs</h3>
<p class="keys"><button type="button" data-g="in">zoom in</button> <button type="button" data-g="out">zoom out</button>
<button type="button" data-g="left" aria-label="earlier">&#8592;</button> <button type="button" data-g="right" aria-label="later">&#8594;</button>
<button type="button" data-g="all">whole step</button>
<span class="q">or in the picture: + - arrows 0, Ctrl and the wheel, drag</span></p>
<div class="pic"><svg id="gantt" tabindex="0" role="img" aria-label="the step: a row for every stage, time from left to right"></svg></div>
<output class="told" id="gantt-told">Hover: what a box is.</output>
<noscript><p>The drawing of the step needs JavaScript.</p></noscript>
<script type="application/json" id="gantt-data">)",
             json, "</script>\n");
}

}  // namespace

std::string step_section(const PlanPage& page) {
  const StepEstimate& estimate = page.estimate;
  std::string html = cat("<section id=\"step\"><h2>How long is a step</h2>\n", band(estimate));
  if (estimate.breakdown.sum() > 0)
    html += cat(limits(estimate.breakdown), breakdown_bar(estimate.breakdown), breakdown_table(estimate.breakdown));
  return cat(html, gantt(estimate), "</section>\n");
}

}  // namespace lockstep::plan
