#include "lockstep/plan/plan_html.h"

#include <array>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::plan {
namespace {

// Nothing may be fetched, whatever a text says.
constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>)";

// Stripes for what is waited for, hatching for where nothing runs.
std::string patterns() {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kStripes = {
      {{"tensor", "#e69f00"}, {"context", "#56b4e9"}, {"experts", "#d55e00"}, {"pipeline", "#009e73"}, {"data", "#cc79a7"}}};
  std::string html = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\n";
  for (const auto& [name, colour] : kStripes)
    html += cat("<pattern id=\"p-", name,
                "\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"",
                colour, "\"/><rect width=\"2.5\" height=\"7\" fill=\"#fff\" opacity=\".6\"/></pattern>\n");
  return html + "<pattern id=\"p-idle\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                "<rect width=\"7\" height=\"7\" fill=\"var(--soft)\"/><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\" stroke=\"var(--hatch)\" stroke-width=\"1.2\"/></pattern>\n"
                "</defs></svg>\n";
}

std::string navigation(const PlanPage& page) {
  std::string html = "<nav aria-label=\"sections\">";
  const auto to = [&](std::string_view id, std::string_view name) { html += cat("<a href=\"#", id, "\">", name, "</a>"); };
  to("decision", "decision");
  to("fit", "fit");
  to("step", "step");
  to("network", "network");
  to("layouts", "layouts");
  to("what-if", "what if");
  if (!page.search.sensitivity.empty()) to("sensitivity", "sensitivity");
  to("constants", "constants");
  return html + "</nav>\n";
}

std::string header(const PlanPage& page) {
  std::string html = cat("<h1>", escaped(page.title.empty() ? "A training plan" : page.title), "</h1>\n<p class=\"q\">", escaped(page.model));
  html += cat("<br>", escaped(page.layout), "<br>", escaped(describe(page.cluster)), "</p>\n");
  if (!page.command.empty()) html += cat("<p class=\"q\"><code>", escaped(page.command), "</code></p>\n");
  return html;
}

}  // namespace

std::string plan_html(const PlanPage& page) {
  return cat(kHead, escaped(page.title.empty() ? "A training plan" : page.title), "</title>\n<style>", plan_style(), "</style>\n</head>\n<body>\n",
             patterns(),
             header(page), navigation(page), "<main>\n", decision_section(page), fit_section(page), step_section(page), network_section(page), layouts_section(page),
             what_if_section(page), constants_section(page), "</main>\n<script>", plan_script(), "</script>\n</body>\n</html>\n");
}

}  // namespace lockstep::plan
