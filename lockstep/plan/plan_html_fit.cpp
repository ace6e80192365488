// Does it fit: a bar per stage against the memory of the device.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180, kLeft = 150, kRight = 130;
constexpr size_t kMostBars = 64;

struct Part {
  std::string_view name, look;
};
constexpr std::array<Part, 6> kParts = {{{"parameters", "m-p"},
                                         {"gradients", "m-g"},
                                         {"optimizer", "m-o"},
                                         {"activations", "m-a"},
                                         {"buffers", "m-b"},
                                         {"context and fragmentation", "m-x"}}};

// What the device holds when most is allocated. Activations and buffers need not be largest at one moment: they share what the peak has
// beside the states.
std::array<double, kParts.size()> at_peak(const StageEstimate& stage) {
  const double states = stage.parameters + stage.gradients + stage.optimizer;
  const double rest = std::max(0.0, stage.peak - states), both = stage.activations + stage.buffers;
  const double activations = both > 0 ? rest * stage.activations / both : rest;
  return {stage.parameters, stage.gradients, stage.optimizer, activations, rest - activations, std::max(0.0, stage.reserved - stage.peak)};
}

// Of many stages some, evenly, and the worst.
std::vector<size_t> bars_of(const StepEstimate& estimate) {
  const size_t count = estimate.stages.size();
  std::vector<size_t> shown;
  for (size_t i = 0; i < std::min(count, kMostBars); ++i) shown.push_back(count <= kMostBars ? i : i * (count - 1) / (kMostBars - 1));
  const StageEstimate* most = worst_stage(estimate);
  const auto worst = most ? static_cast<size_t>(most - estimate.stages.data()) : count;
  if (worst < count && !std::ranges::binary_search(shown, worst)) shown.insert(std::ranges::lower_bound(shown, worst), worst);
  return shown;
}

std::string legend(double width) {
  SvgWriter svg(width);
  double x = kLeft;
  for (const Part& part : kParts) {
    svg.rect(part.look, x, 4, 14, 12);
    svg.text("", x + 19, 14, part.name);
    x += 40 + 7.2 * static_cast<double>(part.name.size());
  }
  svg.line("limit", x, 3, x, 17);
  svg.text("", x + 8, 14, "memory of the device");
  return svg.done(22, "legend of the memory bars");
}

std::string bars(const PlanPage& page, const std::vector<size_t>& shown) {
  const double device = page.cluster.device.memory;
  double most = device;
  for (const StageEstimate& stage : page.estimate.stages) most = std::max(most, stage.reserved);
  const double scale = most > 0 ? (kWidth - kLeft - kRight) / (most * 1.03) : 0;
  const double pitch = shown.size() > 24 ? 15 : 26, bar = pitch - (pitch > 20 ? 7 : 3);
  SvgWriter svg(kWidth);
  double y = 6;
  for (const size_t index : shown) {
    const StageEstimate& stage = page.estimate.stages[index];
    const bool worst = stage.stage == page.estimate.worst_stage;
    svg.text(worst ? "r b" : "r", kLeft - 10, y + bar / 2 + 4, cat("stage ", stage.stage, ", ", stage.layers, stage.layers == 1 ? " block" : " blocks"));
    const auto parts = at_peak(stage);
    std::string told = cat("stage ", stage.stage, ": ", format_bytes(stage.reserved), " reserved, ", format_bytes(stage.peak), " allocated at most:");
    double x = kLeft;
    SvgWriter row(kWidth);
    for (size_t i = 0; i < parts.size(); ++i) {
      row.rect(kParts[i].look, x, y, parts[i] * scale, bar);
      x += parts[i] * scale;
      told += cat(i == 0 ? " " : ", ", kParts[i].name, " ", format_bytes(parts[i]));
    }
    svg.raw(cat("<g", attribute("data-t", told), ">\n", row.body(), "</g>\n"));
    svg.text(stage.reserved > device && device > 0 ? "b" : "", x + 6, y + bar / 2 + 4,
             cat(format_bytes(stage.reserved), stage.reserved > device && device > 0 ? " too much" : ""));
    y += pitch;
  }
  if (device > 0) {
    svg.line("limit", kLeft + device * scale, 0, kLeft + device * scale, y);
    svg.text("r q", kLeft + device * scale - 5, y + 14, format_bytes(device));
  }
  return cat("<div data-pick=\"fit-told\">", svg.done(y + 20, "memory of every stage against the device"),
             "<output class=\"told\" id=\"fit-told\">Hover, or use the arrow keys in the picture: what each stage holds.</output></div>\n");
}

std::string verdict(const PlanPage& page) {
  const StepEstimate& estimate = page.estimate;
  const double device = page.cluster.device.memory;
  const StageEstimate* most = worst_stage(estimate);
  if (!most) return "<p>No stage was estimated.</p>\n";
  const StageEstimate& worst = *most;
  std::string text = cat("<p><strong>", estimate.fits ? "It fits." : "It does not fit.", "</strong> Stage ", worst.stage, " needs most: ",
                         format_bytes(worst.reserved));
  if (device > 0) {
    text += cat(" of ", format_bytes(device), ", ", percent_text(worst.reserved / device));
    if (worst.reserved <= device) text += cat("; ", format_bytes(device - worst.reserved), " are free");
    if (worst.reserved > device) text += cat("; ", format_bytes(worst.reserved - device), " are missing");
  }
  text += ".</p>\n";
  if (!estimate.fits && !page.search.best.empty())
    text += cat("<p>The fastest layout that the search found to fit: ", escaped(describe(page.search.best.front().candidate)), ".</p>\n");
  return text;
}

std::string stages_table(const PlanPage& page, const std::vector<size_t>& shown) {
  TableWriter table({"stage", "blocks", "busy", "parameters", "gradients", "optimizer", "activations", "buffers", "peak", "reserved", "free"},
                    "Bytes of one rank, each at its own largest");
  for (const size_t index : shown) {
    const StageEstimate& stage = page.estimate.stages[index];
    const double device = page.cluster.device.memory;
    table.row({cat(stage.stage), cat(stage.layers), time_text(stage.busy, false), format_bytes(stage.parameters), format_bytes(stage.gradients),
               format_bytes(stage.optimizer), format_bytes(stage.activations), format_bytes(stage.buffers), format_bytes(stage.peak),
               format_bytes(stage.reserved), device > 0 ? format_bytes(device - stage.reserved) : "?"});
  }
  return cat("<details><summary>The same as numbers</summary>\n", table.done(), "</details>\n");
}

}  // namespace

std::string fit_section(const PlanPage& page) {
  const std::vector<size_t> shown = bars_of(page.estimate);
  std::string html = cat("<section id=\"fit\"><h2>Does it fit</h2>\n", verdict(page));
  if (!shown.empty()) html += cat(legend(kWidth), bars(page, shown), stages_table(page, shown));
  if (shown.size() < page.estimate.stages.size())
    html += cat("<p class=\"q\">", shown.size(), " of ", page.estimate.stages.size(), " stages are drawn, the one that needs most among them.</p>\n");
  return html + "</section>\n";
}

}  // namespace lockstep::plan
