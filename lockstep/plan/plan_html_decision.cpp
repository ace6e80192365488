// The decision: numbers, sentences, and how to start it.
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/findings.h"
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

std::string cards(const PlanPage& page) {
  const StepEstimate& estimate = page.estimate;
  std::string html = "<div class=\"cards\">";
  const auto card = [&](const std::string& value, const std::string& name) {
    html += cat("<div class=\"card\"><b>", escaped(value), "</b><span>", escaped(name), "</span></div>\n");
  };
  card(estimate.fits ? "fits" : "does not fit", "in the memory of the devices");
  card(seconds_text(estimate.seconds), cat("a step; 9 of 10: ", band_text(estimate)));
  card(format_count(estimate.seconds > 0 ? estimate.tokens_per_second() : 0), "tokens a second");
  card(tenths_text(estimate.mfu_causal), cat("MFU, causal; ", tenths_text(estimate.mfu_noncausal), " where all attention counts"));
  if (const StageEstimate* worst = worst_stage(estimate))
    card(format_bytes(worst->reserved), cat("of ", format_bytes(page.cluster.device.memory), " on stage ", worst->stage, ", the fullest"));
  card(cat(page.mesh.world_size()), cat("of ", page.cluster.devices(), " devices"));
  MoneyOptions run = page.run;
  if (run.devices == 0) run.devices = page.mesh.world_size();
  const Money money = money_of(page.cluster, estimate, run);
  if (page.cluster.price > 0 && estimate.tokens > 0) card(money_text(money.token * 1e9), "for 1e9 tokens");
  if (run.tokens > 0)
    card(format_duration(3600 * money.hours), cat("for ", format_count(run.tokens), " tokens", money.run > 0 ? cat(", ", money_text(money.run)) : ""));
  return html + "</div>\n";
}

std::string sentences(const PlanPage& page) {
  std::string html = "<table class=\"say\"><tbody>\n";
  for (const Finding& one : findings(page))
    html += cat("<tr", one.warns ? " class=\"warn\"" : "", "><th scope=\"row\">", one.about, one.warns ? " <b>!</b>" : "", "</th><td>", escaped(one.text),
                "</td></tr>\n");
  return html + "</tbody></table>\n";
}

std::string commands(const std::vector<Command>& commands) {
  if (commands.empty()) return "";
  std::string html = "<h3>Start it</h3>\n";
  for (const Command& one : commands)
    html += cat("<p class=\"run\"><span class=\"q\">", escaped(one.what), "</span><br><button type=\"button\" class=\"copy\"", attribute("data-copy", one.text),
                attribute("aria-label", cat("copy: ", one.what)), ">copy</button> <code>", escaped(one.text), "</code></p>\n");
  return html;
}

}  // namespace

std::string decision_section(const PlanPage& page) {
  return cat("<section id=\"decision\"><h2>Decision</h2>\n", cards(page), sentences(page), commands(page.commands), "</section>\n");
}

}  // namespace lockstep::plan
