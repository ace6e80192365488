// What changes the step: other conditions, other constants; and where all numbers come from.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180, kLeft = 560, kRight = 230, kPitch = 24;
constexpr size_t kMostBars = 16;

double change(const WhatIf& what_if, const StepEstimate& now) { return now.seconds > 0 ? what_if.seconds / now.seconds - 1 : 0; }

// Bars to the left and right of a middle line.
class Sideways {
 public:
  explicit Sideways(double most) : most_(std::max(most, 1e-9)), svg_(kWidth) {}

  void name(std::string_view text) { svg_.text("r", kLeft - 10, y_ + 15, text); }
  void bar(double share, std::string_view look) {
    svg_.rect(look, std::min(x(0), x(share)), y_ + 3, std::max(1.0, std::abs(x(share) - x(0))), kPitch - 8);
  }
  void note(std::string_view text) { svg_.text("", kWidth - kRight + 12, y_ + 15, text); }
  void next() { y_ += kPitch; }
  std::string done(std::string_view label) {
    const double step = round_step(2 * most_, 8);
    for (double mark = -std::floor(most_ / step) * step; mark <= most_ * 1.0001; mark += step)
      svg_.text("q m", x(mark), y_ + 18, std::abs(mark) < step / 2 ? "0 %" : change_text(mark));
    svg_.line("axis", x(0), 0, x(0), y_ + 4);
    return svg_.done(y_ + 24, label);
  }

 private:
  double x(double share) const { return kLeft + 30 + (share / most_ + 1) / 2 * (kWidth - kLeft - kRight - 60); }

  double most_, y_ = 0;
  SvgWriter svg_;
};

// A bar from the middle, to the right where the step takes longer; `most` has the whole of a side.
std::string change_bar(double share, double most) {
  constexpr double kSide = 80;
  const double length = std::clamp(std::abs(share) / most, 0.0, 1.0) * kSide;
  return cat("<svg class=\"bar\" width=\"", 2 * kSide, "\" height=\"12\" aria-hidden=\"true\"><rect class=\"", share > 0 ? "worse" : "better", "\" x=\"",
             decimal(share > 0 ? kSide : kSide - length), "\" width=\"", decimal(length), "\" height=\"12\"/><line class=\"axis\" x1=\"", kSide,
             "\" x2=\"", kSide, "\" y1=\"0\" y2=\"12\"/></svg>");
}

std::string what_if_table(const PlanPage& page) {
  // Very slow ones do not make all others small: their bars end at the edge.
  constexpr double kMostBar = 0.5;
  double most = 0.01;
  for (const WhatIf& one : page.what_ifs) most = std::max(most, std::abs(change(one, page.estimate)));
  most = std::min(most, kMostBar);
  TableWriter table({"what if", "step", "change", cat("<- ", tenths_text(most), " to + ", tenths_text(most)), "<most of it"},
                    cat("As it is, a step takes ", seconds_text(page.estimate.seconds)));
  std::string group;
  for (const WhatIf& one : page.what_ifs) {
    if (one.group != group) table.head(one.group);
    group = one.group;
    const double share = change(one, page.estimate);
    const std::string note = one.note.empty() && !one.fits ? "does not fit" : one.note;
    table.raw_row({escaped(one.what), seconds_text(one.seconds, page.estimate.seconds), change_text(share), change_bar(share, most), escaped(note)},
                  one.fits ? "" : " class=\"no\"");
  }
  return table.done();
}

std::string sensitivity_section(const SearchResult& search) {
  if (search.sensitivity.empty()) return "";
  TableWriter table({"constant", "10 % less", "10 % more", "<another layout is best then"}, "Change of the step of what is best");
  for (const Sensitivity& one : search.sensitivity)
    table.row({cat(one.constant, constant_text(one.constant).empty() ? "" : ": ", constant_text(one.constant)), change_text(one.minus), change_text(one.plus), one.order_changes ? "yes" : "no"});
  return cat("<section id=\"sensitivity\"><h2>Which constants matter</h2>\n",
             "<p>What the step changes by when one of the numbers that describe the software is 10 % off.</p>\n",
             tornado_svg(search.sensitivity),
             "<details><summary>The same as numbers</summary>\n",
             table.done(), "</details></section>\n");
}

std::string origin_of(const Stack& stack, const std::string& field) {
  const auto found = stack.origins.find(field);
  return found == stack.origins.end() ? "" : found->second;
}

std::string flops_text(double flops) { return cat(decimal(flops / 1e12, flops < 1e13 ? 2 : 0), " TFLOP/s"); }

std::string device_table(const Cluster& cluster) {
  const DeviceKind& device = cluster.device;
  TableWriter table({"of the hardware", "value", "<origin"});
  const auto row = [&](std::string_view name, const std::string& value, const std::string& origin) { table.row({std::string(name), value, origin}); };
  const auto rate = [](double bytes) { return cat(program::decimal_bytes(bytes), "/s"); };
  row("device", device.name, device.origin);
  row("memory of a device", format_bytes(device.memory), device.origin);
  row("memory bandwidth", rate(device.memory_bandwidth), device.origin);
  row("dense products, bf16", flops_text(device.flops_bf16), device.origin);
  if (device.flops_fp8 > 0) row("dense products, fp8", flops_text(device.flops_fp8), device.origin);
  if (device.link > 0) row("NVLink or xGMI of a device, one direction", rate(device.link), device.origin);
  if (cluster.nodes > 1) {
    row("NIC, one direction", rate(cluster.network.nic), cluster.origin);
    row("NICs of a node", cat(cluster.nics_per_node), cluster.origin);
    row("latency under one leaf", time_text(cluster.network.latency_leaf, false), cluster.origin);
    row("latency over the spines", time_text(cluster.network.latency_spine, false), cluster.origin);
    row("oversubscription", cat(decimal(cluster.network.oversubscription, 2), ":1"), cluster.origin);
  }
  if (cluster.price > 0) row("price of a device and hour", money_text(cluster.price), cluster.origin);
  return table.done();
}

}  // namespace

std::string tornado_svg(const std::vector<Sensitivity>& sensitivity) {
  std::vector<const Sensitivity*> rows;
  const auto size = [](const Sensitivity* one) { return std::max(std::abs(one->minus), std::abs(one->plus)); };
  for (const Sensitivity& one : sensitivity)
    if (size(&one) >= kSameStep) rows.push_back(&one);
  std::ranges::stable_sort(rows, std::greater<>{}, size);
  if (rows.size() > kMostBars) rows.resize(kMostBars);
  Sideways bars(rows.empty() ? 0.01 : size(rows.front()));
  for (const Sensitivity* one : rows) {
    const std::string_view words = constant_text(one->constant);
    bars.name(words.empty() ? one->constant : cat(words, " (", one->constant, ")"));
    // The longer one below.
    const bool plus_first = std::abs(one->plus) > std::abs(one->minus);
    bars.bar(plus_first ? one->plus : one->minus, plus_first ? "plus" : "minus");
    bars.bar(plus_first ? one->minus : one->plus, plus_first ? "minus" : "plus");
    bars.note(cat(change_text(one->minus), " / ", change_text(one->plus), one->order_changes ? "; another is best" : ""));
    bars.next();
  }
  SvgWriter legend(kWidth);
  legend.rect("minus", kLeft, 3, 14, 12);
  legend.text("", kLeft + 20, 14, "constant 10 % less");
  legend.rect("plus", kLeft + 180, 3, 14, 12);
  legend.text("", kLeft + 200, 14, "constant 10 % more");
  legend.text("q", kWidth - kRight + 12, 14, "step: less / more");
  return legend.done(20, "legend of the sensitivity") + bars.done("change of the best step when a constant changes by 10 %");
}

std::string what_if_section(const PlanPage& page) {
  std::string html = "<section id=\"what-if\"><h2>What if</h2>\n";
  html += page.what_ifs.empty() ? "<p class=\"q\">No other condition was asked about.</p>\n" : what_if_table(page);
  html += page.goodput.empty() ? "<p class=\"q\">Failures are not counted: the cluster says none.</p>\n"
                               : cat("<p><strong>Failures.</strong> ", escaped(page.goodput), "</p>\n");
  return cat(html, "</section>\n", sensitivity_section(page.search));
}

std::string constants_section(const PlanPage& page) {
  TableWriter table({cat("of the software: ", page.stack.name), "value", "<what it is", "<origin"});
  table.row({"kernels", std::string(kernels_name(page.stack.kernels)), "generation of attention kernels, and what else came with it", origin_of(page.stack, "kernels")});
  for (const auto& [name, field] : stack_constants()) table.row({name, number_text(page.stack.*field), std::string(constant_text(name)), origin_of(page.stack, name)});
  std::string html = cat("<section id=\"constants\"><h2>Where the numbers come from</h2>\n", device_table(page.cluster), "<details><summary>All constants of the software</summary>\n", table.done(),
                         "</details>\n");
  if (!page.config.empty())
    html += cat("<details><summary>The configuration</summary>\n<p class=\"keys\"><button type=\"button\" class=\"copy\"", attribute("data-copy",
                                                                                                                                     page.config),
                ">copy</button></p>\n<pre>", escaped(page.config), "</pre></details>\n");
  return html + "</section>\n";
}

}  // namespace lockstep::plan
