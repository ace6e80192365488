#include "lockstep/plan/plan_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/cluster/links_text.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using program::Row;

constexpr int kBar = 40;               // columns of a whole
constexpr double kShown = 0.0005;      // shares below are not worth a row

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string bar(double share, int columns = kBar) {
  const double part = std::clamp(share, 0.0, 1.0);
  const int full = static_cast<int>(std::lround(part * columns));
  return std::string(static_cast<size_t>(std::max(full, part > 0 ? 1 : 0)), '#');
}

// "989 T".
std::string rate_text(double rate) {
  std::string text = format_count(rate);
  if (text.back() < '0' || text.back() > '9') text.insert(text.size() - 1, " ");
  return text;
}

// The first, the one of those between that needs most, the last.
std::vector<size_t> shown_stages(const std::vector<StageEstimate>& stages, bool all) {
  std::vector<size_t> shown;
  if (all || stages.size() <= 3) {
    for (size_t i = 0; i < stages.size(); ++i) shown.push_back(i);
    return shown;
  }
  const auto most = std::max_element(stages.begin() + 1, stages.end() - 1, [](auto& a, auto& b) { return a.reserved < b.reserved; });
  return {0, static_cast<size_t>(most - stages.begin()), stages.size() - 1};
}

std::string stage_name(const std::vector<StageEstimate>& stages, size_t index) {
  const int stage = stages[index].stage;
  if (stages.size() == 1) return "all";
  if (index == 0) return cat(stage, " first");
  return index + 1 == stages.size() ? cat(stage, " last") : cat(stage, " between");
}

// What makes less of a part of memory.
std::string_view less_of(std::string_view part) {
  if (part == "activations") return "recomputation, a smaller micro-batch, more ranks on tp or cp";
  if (part == "buffers") return "a smaller micro-batch, more ranks on tp";
  return "a higher ZeRO stage, more ranks on tp, pp or ep, offload";
}

std::string fit_line(const StepEstimate& estimate, const Cluster& cluster) {
  const auto worst = std::find_if(estimate.stages.begin(), estimate.stages.end(), [&](auto& one) { return one.stage == estimate.worst_stage; });
  if (worst == estimate.stages.end()) return "";
  const double room = cluster.device.memory;
  const std::string who = estimate.stages.size() > 1 ? cat("stage ", worst->stage, " needs ") : "a rank needs ";
  const std::string need = cat(who, format_bytes(worst->reserved), " of the ", format_bytes(room), " of ", cluster.device.name);
  if (estimate.fits) return cat("fits: ", need, ", ", format_bytes(room - worst->reserved), " are left\n");
  const auto& parts = memory_parts();
  const auto most = std::max_element(parts.begin(), parts.end(), [&](auto& a, auto& b) { return (*worst).*a.second < (*worst).*b.second; });
  return cat("does not fit: ", need, ", ", format_bytes(worst->reserved - room), " too little; most is ", most->first, ", ",
             format_bytes((*worst).*most->second), ": ", less_of(most->first), "\n");
}

}  // namespace

const std::vector<Term>& terms() {
  using Kind = Term::Kind;
  static const std::vector<Term> table = {
      {"products", "matrix products", Kind::kCompute, &Breakdown::products, ""},
      {"attention", "attention", Kind::kCompute, &Breakdown::attention, ""},
      {"pointwise", "pointwise work", Kind::kCompute, &Breakdown::pointwise,
       "memory bandwidth sets it: more ranks on tp with sequence parallelism, fused kernels"},
      {"recompute", "recomputation", Kind::kCompute, &Breakdown::recompute,
       "it pays for memory: more ranks on tp or pp, a higher ZeRO stage, or a smaller micro-batch may do without"},
      {"optimizer", "optimizer", Kind::kCompute, &Breakdown::optimizer, "a larger batch has fewer updates, a ZeRO stage shares them out"},
      {"host", "host and launches", Kind::kRest, &Breakdown::host, "larger micro-batches have fewer and longer kernels"},
      {"tensor", "tensor parallel waits", Kind::kWaits, &Breakdown::tensor, "fewer ranks on tp, or all of them inside one NVLink domain"},
      {"context", "context parallel waits", Kind::kWaits, &Breakdown::context, "fewer ranks on cp, or all of them inside one node"},
      {"experts", "expert parallel waits", Kind::kWaits, &Breakdown::experts,
       "fewer ranks on ep, or all of them inside one NVLink domain; more bandwidth between nodes"},
      {"pipeline", "pipeline waits", Kind::kWaits, &Breakdown::pipeline, "fewer virtual stages, or stages side by side below one leaf"},
      {"data", "data parallel waits", Kind::kWaits, &Breakdown::data,
       "a larger batch, more bandwidth between leaves, or fewer replicas with more ranks on tp or pp"},
      {"bubble", "pipeline bubble", Kind::kRest, &Breakdown::bubble,
       "more microbatches (a larger batch, fewer replicas), more virtual stages, or fewer stages"}};
  return table;
}

const std::vector<std::pair<std::string_view, double StageEstimate::*>>& memory_parts() {
  static const std::vector<std::pair<std::string_view, double StageEstimate::*>> table = {
      {"parameters", &StageEstimate::parameters}, {"gradients", &StageEstimate::gradients}, {"optimizer", &StageEstimate::optimizer},
      {"activations", &StageEstimate::activations}, {"buffers", &StageEstimate::buffers}};
  return table;
}

std::string fit_text(const StepEstimate& estimate, const Cluster& cluster, bool all) {
  Row head = {"stage", "blocks"};
  for (const auto& [name, member] : memory_parts()) head.emplace_back(name);
  for (const char* name : {"peak", "reserved", "of the device"}) head.emplace_back(name);
  std::vector<Row> rows = {head};
  for (const size_t index : shown_stages(estimate.stages, all)) {
    const StageEstimate& stage = estimate.stages[index];
    Row row = {stage_name(estimate.stages, index), cat(stage.layers)};
    for (const auto& [name, member] : memory_parts()) row.push_back(format_bytes(stage.*member));
    const double share = stage.reserved / cluster.device.memory;
    row.push_back(format_bytes(stage.peak));
    row.push_back(format_bytes(stage.reserved));
    row.push_back(cat(pad_left(tenths_text(share), 7), "  ", bar(share, kBar / 2)));
    rows.push_back(std::move(row));
  }
  return cat(program::table(rows, 1, head.size() - 2), fit_line(estimate, cluster));
}

std::string tenths_text(double share) {
  const std::string text = fixed(100 * share, 1);
  if (share > 0 && text == "0.0") return "< 0.1 %";
  return cat(text == "-0.0" ? "0.0" : text, " %");
}

std::string change_text(double share) {
  const std::string size = fixed(100 * std::abs(share), 1);
  if (size == "0.0") return "0.0 %";
  return cat(share < 0 ? "-" : "+", size, " %");
}

std::string seconds_text(double seconds, double scale) {
  struct Unit {
    double seconds;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{1, " s"}, {1e-3, " ms"}, {1e-6, " us"}};
  const double size = std::abs(scale);
  const Unit* unit = std::ranges::find_if(kUnits, [&](const Unit& one) { return size >= one.seconds; });
  if (unit == std::end(kUnits)) unit = size > 0 ? std::end(kUnits) - 1 : kUnits;
  const int whole = size > 0 ? static_cast<int>(std::floor(std::log10(size / unit->seconds))) + 1 : 1;
  return fixed(seconds / unit->seconds, std::clamp(4 - whole, 0, 3)) + unit->name;
}

std::string band_text(const StepEstimate& estimate) {
  return cat(seconds_text(estimate.low, estimate.seconds), " to ", seconds_text(estimate.high, estimate.seconds));
}

std::string money_text(double money) {
  if (money < 1000) return cat("$", fixed(money, 2));
  return cat("$", money < 1e6 ? cat(fixed(money / 1e3, money < 1e4 ? 2 : 1), "k") : cat(fixed(money / 1e6, money < 1e8 ? 2 : 1), "M"));
}

std::string step_text(const StepEstimate& estimate, const Cluster& cluster, const MoneyOptions& run) {
  const Money money = money_of(cluster, estimate, run);
  std::vector<Row> rows;
  rows.push_back({"step", cat(seconds_text(estimate.seconds), "; in 9 of 10 cases ", band_text(estimate),
                              estimate.widest.empty() ? "" : cat("; least sure: ", estimate.widest))});
  rows.push_back({"tokens", cat(format_count(estimate.tokens), " a step, ", format_count(estimate.tokens_per_second()), " a second, ",
                                format_count(estimate.tokens_per_second() / run.devices), " a second and device")});
  rows.push_back({"MFU", cat(tenths_text(estimate.mfu_causal), " of ", rate_text(cluster.device.flops_bf16), cluster.device.generation == Generation::kCpu ? "FLOP/s" : "FLOP/s bf16", ", attention counted ",
                             "causal; ", tenths_text(estimate.mfu_noncausal), " where all of it counts")});
  if (cluster.price > 0)
    rows.push_back({"costs", cat(money_text(money.step), " a step, ", money_text(money.token * 1e9), " for 1e9 tokens, at ",
                                 money_text(cluster.price), " for a device and hour")});
  if (run.tokens > 0) {
    const std::string lost = run.useful < 1 ? cat(" with failures and saving (", tenths_text(run.useful), " useful)") : "";
    rows.push_back({"run", cat(format_count(run.tokens), " tokens: ", format_count(money.steps), " steps, ", format_duration(3600 * money.hours), lost,
                               money.run > 0 ? ", " + money_text(money.run) : "", ", ", format_count(money.hours * run.devices), " device hours")});
  }
  return program::table(rows, 2, 0);
}

std::string limits_text(const StepEstimate& estimate) {
  std::vector<Row> rows;
  std::array<double, 3> kinds{};
  const Term* loss = nullptr;
  for (const Term& term : terms()) {
    const double value = estimate.breakdown.*term.seconds, share = value / estimate.seconds;
    kinds[static_cast<size_t>(term.kind)] += share;
    if (share < kShown) continue;
    rows.push_back({std::string(term.label), seconds_text(value, estimate.seconds), tenths_text(share), bar(share)});
    if (!term.way_out.empty() && (!loss || value > estimate.breakdown.*loss->seconds)) loss = &term;
  }
  std::string text = program::table(rows, 1, 2);
  text += cat("computing ", tenths_text(kinds[0]), ", waiting for communication ", tenths_text(kinds[1]), ", bubble and host ",
              tenths_text(kinds[2]), "\n");
  if (loss) {
    const double share = estimate.breakdown.*loss->seconds / estimate.seconds;
    text += cat("largest beside products and attention: ", loss->label, ", ", tenths_text(share), "; ", loss->way_out, "\n");
  }
  return text;
}

std::string compare_text(const std::vector<std::pair<std::string, const StepEstimate*>>& steps) {
  Row head = {""};
  for (const auto& [name, step] : steps) head.push_back(name);
  std::vector<Row> rows = {head};
  const double whole = steps.front().second->seconds;
  const auto row = [&](std::string_view label, const auto& value) {
    Row cells = {std::string(label)};
    const double first = value(*steps.front().second);
    for (size_t i = 0; i < steps.size(); ++i) {
      const double here = value(*steps[i].second);
      cells.push_back(cat(seconds_text(here, whole), i == 0 ? "" : pad_left(change_text((here - first) / whole), 10)));
    }
    rows.push_back(std::move(cells));
  };
  for (const Term& term : terms()) {
    const auto value = [&](const StepEstimate& step) { return step.breakdown.*term.seconds; };
    const auto changes = [&](const auto& step) { return std::abs(value(*step.second) - value(*steps.front().second)) >= kShown * whole; };
    const bool differs = std::ranges::any_of(steps, changes);
    if (differs) row(term.label, value);
  }
  row("step", [](const StepEstimate& step) { return step.seconds; });
  return program::table(rows, 1, steps.size());
}

std::string what_ifs_text(const std::vector<WhatIf>& what_ifs, const StepEstimate& now) {
  std::vector<Row> rows = {{"what if", "step", "change", ""}, {"as it is", seconds_text(now.seconds), "", ""}};
  std::string_view group;
  for (const WhatIf& one : what_ifs) {
    if (one.group != group) rows.push_back({cat(one.group, ":"), "", "", ""});
    group = one.group;
    rows.push_back({cat(group.empty() ? "" : "  ", one.what), seconds_text(one.seconds, now.seconds), change_text(one.seconds / now.seconds - 1),
                    one.note.empty() && !one.fits ? "does not fit" : one.note});
  }
  return program::table(rows, 1, 2);
}

std::string traffic_text(const StepEstimate& estimate, const Cluster& cluster) {
  std::string text = traffic_table(estimate.traffic, cluster, estimate.seconds);
  for (const std::string& sentence : explain_traffic(estimate.traffic, cluster, estimate.seconds)) text += cat("- ", sentence, "\n");
  return text;
}

}  // namespace lockstep::plan
