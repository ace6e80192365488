#include <cstdio>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/program/render/render_text.h"
#include "lockstep/train/verify.h"

namespace lockstep::train {
namespace {

std::string print(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string exact(double value) { return print("%.9g", value); }
std::string rough(double value) { return print("%.2e", value); }

// Below the line of a step in which both are left alone.
std::string drift_text(const Drift& drift, const std::vector<arch::StateSlot>& slots) {
  const auto pair = [](const std::string& what, double layout, double reordered) {
    return cat(what, " ", rough(layout), " (", rough(reordered), ")");
  };
  std::string text = cat("     from the twin: ", pair("values", drift.layout.values, drift.reordered.values));
  for (size_t i = 0; i < slots.size(); ++i)
    text += "  " + pair(cat(slots[i].text, "s"), drift.layout.slots.at(i), drift.reordered.slots.at(i));
  return text + "\n";
}

OrderedJson drift_json(const std::optional<Drift>& drift, const std::vector<arch::StateSlot>& slots) {
  if (!drift) return nullptr;
  const auto distance = [&](const Distance& of) {
    OrderedJson object;
    object["values"] = of.values;
    for (size_t i = 0; i < slots.size(); ++i) object[std::string(slots[i].name)] = of.slots.at(i);
    return object;
  };
  return {{"layout", distance(drift->layout)}, {"reordered", distance(drift->reordered)}};
}

OrderedJson step_json(const VerifyStep& step, const std::vector<arch::StateSlot>& slots) {
  return {{"loss", step.loss},
          {"reference_loss", step.reference_loss},
          {"grad_norm", step.grad_norm},
          {"reference_grad_norm", step.reference_grad_norm},
          {"learning_rate", step.learning_rate},
          {"max_gradient_error", step.max_gradient_error},
          {"worst_gradient", step.worst_gradient},
          {"max_parameter_error", step.max_parameter_error},
          {"worst_parameter", step.worst_parameter},
          {"max_update_error", step.max_update_error},
          {"worst_update", step.worst_update},
          {"alone", step.alone},
          {"drift", drift_json(step.drift, slots)},
          {"failures", step.failures}};
}

// Nothing where no call has a size that tokens decide.
std::string traffic_text(const VerifyTraffic& traffic) {
  if (traffic.at_run_time.empty()) return "";
  std::vector<program::Row> rows = {{"sent in the last step, where tokens decide", "axis", "calls", "balanced", "rank 0", "most", "by rank"}};
  for (const TrafficSite& site : traffic.at_run_time)
    rows.push_back({site.site, site.axis, site.calls == site.predicted_calls ? cat(site.calls) : cat(site.calls, " for ", site.predicted_calls),
                    program::decimal_bytes(site.predicted_bytes), program::decimal_bytes(site.bytes), program::decimal_bytes(site.most_bytes),
                    cat(site.most_rank)});
  return cat("\n", program::table(rows, 2, 5),
             traffic.as_predicted ? "all other calls of all steps sent what was predicted, on every rank\n"
                                  : "not all calls sent what was predicted: see above\n");
}

OrderedJson traffic_json(const VerifyTraffic& traffic) {
  OrderedJson sites = OrderedJson::array();
  for (const TrafficSite& site : traffic.at_run_time)
    sites.push_back({{"site", site.site},
                     {"axis", site.axis},
                     {"predicted_calls", site.predicted_calls},
                     {"calls", site.calls},
                     {"predicted_bytes", site.predicted_bytes},
                     {"bytes", site.bytes},
                     {"most_bytes", site.most_bytes},
                     {"most_rank", site.most_rank}});
  return {{"as_predicted", traffic.as_predicted}, {"at_run_time", sites}};
}

}  // namespace

std::string verify_text(const VerifyReport& report) {
  const Tolerances& bounds = report.tolerances;
  std::string text = cat("layout     ", report.layout, " on ", report.world_size, " ranks\n",
                         "reference  the same model, data and global batch on one rank\n",
                         "tolerances loss ", rough(bounds.loss), "  gradient norm ", rough(bounds.grad_norm),
                         "  gradients ", rough(bounds.gradient), " of the tensor's largest value  parameters ",
                         number_text(bounds.parameter), " learning rates a step\n",
                         "           updates ", number_text(bounds.update), " x the rounding of the formula in fp32");
  if (report.free > 0) text += cat("  left alone for the last ", report.free, " steps, closer than a reordered sum (in brackets)");
  text += "\n\nstep           loss      reference      grad norm      reference  worst gradient                        error"
          "  worst parameter                    lr units  worst update                                             error\n";
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const VerifyStep& step = report.steps[i];
    text += cat(pad_left(cat(i + 1), 4), pad_left(exact(step.loss), 15), pad_left(exact(step.reference_loss), 15),
                pad_left(exact(step.grad_norm), 15), pad_left(exact(step.reference_grad_norm), 15), "  ",
                pad_right(step.worst_gradient, 34), pad_left(rough(step.max_gradient_error), 9), "  ",
                pad_right(step.worst_parameter, 34), pad_left(rough(step.max_parameter_error), 9), "  ",
                pad_right(step.worst_update, 52), pad_left(rough(step.max_update_error), 9), "\n");
    if (step.drift) text += drift_text(*step.drift, report.slots);
    for (const std::string& failure : step.failures) text += "     FAILED " + failure + "\n";
  }
  text += traffic_text(report.traffic);
  return text + (report.ok ? "\nok: the layout computes what one rank computes\n"
                           : "\nFAILED: the layout does not compute what one rank computes\n");
}

std::string verify_json(const VerifyReport& report) {
  OrderedJson steps = OrderedJson::array();
  for (const VerifyStep& step : report.steps) steps.push_back(step_json(step, report.slots));
  const OrderedJson object = {{"ok", report.ok},
                              {"world_size", report.world_size},
                              {"layout", report.layout},
                              {"tolerances",
                               {{"loss", report.tolerances.loss},
                                {"grad_norm", report.tolerances.grad_norm},
                                {"gradient", report.tolerances.gradient},
                                {"parameter", report.tolerances.parameter},
                                {"update", report.tolerances.update}}},
                              {"free", report.free},
                              {"steps", steps},
                              {"traffic", traffic_json(report.traffic)}};
  return object.dump(2) + "\n";
}

}  // namespace lockstep::train
