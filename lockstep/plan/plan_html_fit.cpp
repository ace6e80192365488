// Does it fit: a bar per stage against the memory of the device.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180, kLeft = 170, kRight = 190;
constexpr size_t kMostBars = 24;
constexpr double kAlike = 0.002;  // of what a stage needs: such neighbours have one bar

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

// Neighbouring stages that need the same.
struct Run {
  size_t begin = 0, end = 0;  // stages
};

bool alike(const StageEstimate& a, const StageEstimate& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= kAlike * std::max(x, y); };
  bool same = a.layers == b.layers && near(a.reserved, b.reserved) && near(a.peak, b.peak);
  for (const auto& [name, member] : memory_parts()) same = same && near(a.*member, b.*member);
  return same;
}

// Of very many runs some, evenly, and that of the worst stage.
std::vector<Run> bars_of(const StepEstimate& estimate) {
  std::vector<Run> runs;
  for (size_t i = 0; i < estimate.stages.size(); ++i)
    if (!runs.empty() && alike(estimate.stages[runs.back().begin], estimate.stages[i]) && estimate.stages[i].stage != estimate.worst_stage)
      runs.back().end = i + 1;
    else
      runs.push_back({i, i + 1});
  if (runs.size() <= kMostBars) return runs;
  const StageEstimate* most = worst_stage(estimate);
  const auto worst = most ? static_cast<size_t>(most - estimate.stages.data()) : estimate.stages.size();
  std::vector<Run> shown;
  size_t next = 0;  // of those that are evenly taken
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool even = i == next * (runs.size() - 1) / (kMostBars - 1);
    if (even || (runs[i].begin <= worst && worst < runs[i].end)) shown.push_back(runs[i]);
    if (even) ++next;
  }
  return shown;
}

std::string run_name(const StepEstimate& estimate, const Run& run) {
  const int first = estimate.stages[run.begin].stage, last = estimate.stages[run.end - 1].stage, blocks = estimate.stages[run.begin].layers;
  const std::string who = run.end - run.begin == 1 ? cat("stage ", first) : cat("stages ", first, " to ", last);
  return cat(who, ", ", blocks, blocks == 1 ? " block" : " blocks");
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

std::string bars(const PlanPage& page, const std::vector<Run>& shown) {
  const double device = page.cluster.device.memory;
  const double most = std::max(device, page.estimate.most_reserved());
  const double scale = most > 0 ? (kWidth - kLeft - kRight) / (most * 1.03) : 0;
  constexpr double pitch = 26, bar = 19;
  SvgWriter svg(kWidth);
  double y = 6;
  for (const Run& run : shown) {
    const StageEstimate& stage = page.estimate.stages[run.begin];
    const bool worst = stage.stage == page.estimate.worst_stage;
    svg.text(worst ? "r b" : "r", kLeft - 10, y + bar / 2 + 4, run_name(page.estimate, run));
    const auto parts = at_peak(stage);
    std::string told = cat(run_name(page.estimate, run), ": ", format_bytes(stage.reserved), " reserved, ", format_bytes(stage.peak), " allocated at most:");
    double x = kLeft;
    SvgWriter row(kWidth);
    for (size_t i = 0; i < parts.size(); ++i) {
      row.rect(kParts[i].look, x, y, parts[i] * scale, bar);
      x += parts[i] * scale;
      told += cat(i == 0 ? " " : ", ", kParts[i].name, " ", format_bytes(parts[i]));
    }
    svg.raw(cat("<g", attribute("data-t", told), ">\n", row.body(), "</g>\n"));
    // Behind the limit, so that the line crosses no number.
    const bool over = device > 0 && stage.reserved > device;
    const double behind = std::max(x, device > 0 ? kLeft + device * scale : 0) + 8;
    svg.text(over ? "b" : "", behind, y + bar / 2 + 4,
             cat(format_bytes(stage.reserved), device > 0 ? cat(", ", tenths_text(stage.reserved / device)) : "", over ? ", too much" : ""));
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
    text += cat(" of ", format_bytes(device), ", ", tenths_text(worst.reserved / device));
    if (worst.reserved <= device) text += cat("; ", format_bytes(device - worst.reserved), " are free");
    if (worst.reserved > device) text += cat("; ", format_bytes(worst.reserved - device), " are missing");
  }
  text += ".</p>\n";
  if (!estimate.fits && !page.search.best.empty())
    text += cat("<p>The fastest layout that the search found to fit: ", escaped(describe(page.search.best.front().candidate)), ".</p>\n");
  return text;
}

std::string stages_table(const PlanPage& page, const std::vector<Run>& shown) {
  TableWriter table({"stage", "blocks", "busy", "parameters", "gradients", "optimizer", "activations", "buffers", "peak", "reserved", "free"},
                    "Bytes of one rank, each at its own largest");
  const double device = page.cluster.device.memory, step = page.estimate.seconds;
  for (const Run& run : shown) {
    const StageEstimate& stage = page.estimate.stages[run.begin];
    const int last = page.estimate.stages[run.end - 1].stage;
    std::vector<std::string> cells = {last == stage.stage ? cat(last) : cat(stage.stage, " to ", last), cat(stage.layers), seconds_text(stage.busy, step)};
    for (const auto& [name, member] : memory_parts()) cells.push_back(format_bytes(stage.*member));
    for (const double bytes : {stage.peak, stage.reserved}) cells.push_back(format_bytes(bytes));
    cells.push_back(device > 0 ? format_bytes(device - stage.reserved) : "?");
    table.row(cells);
  }
  return cat("<details><summary>The same as numbers</summary>\n", table.done(), "</details>\n");
}

}  // namespace

std::string fit_section(const PlanPage& page) {
  const std::vector<Run> shown = bars_of(page.estimate);
  std::string html = cat("<section id=\"fit\"><h2>Does it fit</h2>\n", verdict(page));
  if (!shown.empty()) html += cat(legend(kWidth), bars(page, shown), stages_table(page, shown));
  size_t drawn = 0;
  for (const Run& run : shown) drawn += run.end - run.begin;
  if (drawn < page.estimate.stages.size())
    html += cat("<p class=\"q\">", drawn, " of ", page.estimate.stages.size(), " stages are drawn, the one that needs most among them.</p>\n");
  return html + "</section>\n";
}

}  // namespace lockstep::plan
