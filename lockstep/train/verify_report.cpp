#include <cstdio>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
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

}  // namespace

std::string verify_text(const VerifyReport& report) {
  const Tolerances& bounds = report.tolerances;
  std::string text = cat("layout     ", report.layout, " on ", report.world_size, " ranks\n",
                         "reference  the same model, data and global batch on one rank\n",
                         "tolerances loss ", rough(bounds.loss), "  gradient norm ", rough(bounds.grad_norm),
                         "  gradients ", rough(bounds.gradient), " of the tensor's largest value  parameters ",
                         number_text(bounds.parameter), " learning rates a step\n\n");
  text += "step           loss      reference      grad norm      reference  worst gradient                        error"
          "  worst parameter                    lr units\n";
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const VerifyStep& step = report.steps[i];
    text += cat(pad_left(cat(i + 1), 4), pad_left(exact(step.loss), 15), pad_left(exact(step.reference_loss), 15),
                pad_left(exact(step.grad_norm), 15), pad_left(exact(step.reference_grad_norm), 15), "  ",
                pad_right(step.worst_gradient, 34), pad_left(rough(step.max_gradient_error), 9), "  ",
                pad_right(step.worst_parameter, 34), pad_left(rough(step.max_parameter_error), 9), "\n");
    for (const std::string& failure : step.failures) text += "     FAILED " + failure + "\n";
  }
  return text + (report.ok ? "\nok: the layout computes what one rank computes\n"
                           : "\nFAILED: the layout does not compute what one rank computes\n");
}

std::string verify_json(const VerifyReport& report) {
  OrderedJson steps = OrderedJson::array();
  for (const VerifyStep& step : report.steps)
    steps.push_back({{"loss", step.loss},
                     {"reference_loss", step.reference_loss},
                     {"grad_norm", step.grad_norm},
                     {"reference_grad_norm", step.reference_grad_norm},
                     {"max_gradient_error", step.max_gradient_error},
                     {"worst_gradient", step.worst_gradient},
                     {"max_parameter_error", step.max_parameter_error},
                     {"worst_parameter", step.worst_parameter},
                     {"failures", step.failures}});
  const OrderedJson object = {{"ok", report.ok},
                              {"world_size", report.world_size},
                              {"layout", report.layout},
                              {"tolerances",
                               {{"loss", report.tolerances.loss},
                                {"grad_norm", report.tolerances.grad_norm},
                                {"gradient", report.tolerances.gradient},
                                {"parameter", report.tolerances.parameter}}},
                              {"steps", steps}};
  return object.dump(2) + "\n";
}

}  // namespace lockstep::train
