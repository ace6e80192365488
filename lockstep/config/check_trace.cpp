#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::config {
namespace {

// -1 where it is no number.
int64_t number(std::string_view text) {
  return parse_number<int64_t>(text).value_or(-1);
}

}  // namespace

TracedSteps traced_steps(const RunConfig& config) {
  const std::string& text = config.trace.steps;
  if (text.empty()) return {};
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return {number(text), number(text)};
  return {number(std::string_view(text).substr(0, dash)), number(std::string_view(text).substr(dash + 1))};
}

void trace_problems(const RunConfig& config, const Expect& expect) {
  if (config.trace.steps.empty()) return;
  const TracedSteps steps = traced_steps(config);
  expect(steps.first >= 1 && steps.last >= steps.first, "trace.steps",
         cat("\"", config.trace.steps, "\" names no steps"),
         {{.changes = {{"trace.steps", "1"}}, .text = "write \"10\" or \"10-12\"; steps count from 1"}});
  expect(steps.last <= config.train.steps, "trace.steps",
         cat("trace.steps ends at ", steps.last, ", but train.steps = ", config.train.steps),
         {{.changes = {{"trace.steps", cat(config.train.steps)}}, .text = cat("use steps up to ", config.train.steps)}});
}

}  // namespace lockstep::config
