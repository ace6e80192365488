#include "lockstep/train/step_log.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "lockstep/base/text.h"
#include "lockstep/plan/spans.h"

namespace lockstep::train {
namespace {

// "12 40 8": a load for each expert.
std::string load_text(std::span<const double> routed) {
  std::vector<std::string> numbers;
  for (const double load : routed) numbers.push_back(cat(std::llround(load)));
  return join(numbers, " ");
}

void add_losses(const engine::StepResult& result, const std::vector<engine::ExpertLoad>& loads, Values& values) {
  if (loads.empty()) return;
  values.emplace_back("train/aux_loss", result.aux_loss);
  values.emplace_back("train/z_loss", result.z_loss);
  for (const engine::ExpertLoad& load : loads) {
    values.emplace_back(cat("experts/", load.name, "/routed"), load.total());
    values.emplace_back(cat("experts/", load.name, "/dropped"), load.dropped);
    values.emplace_back(cat("experts/", load.name, "/max_over_mean"), load.max_over_mean());
    if (load.further_rounds > 0) values.emplace_back(cat("experts/", load.name, "/further_rounds"), load.further_rounds);
  }
}

}  // namespace

void StepLog::known(const StepRecord& record, const RunPosition& at) {
  const engine::StepResult& result = record.result;
  last_loss_ = result.loss;
  exposed_.add(result, record.seconds);
  if (options_.predicted && record.step > began_at_ + 1) step_seconds_.push_back(record.seconds);
  say_overload(record);
  const double memory_gib = due(record.step) ? options_.worst_memory_gib() : 0;
  since_line_.steps += 1;
  since_line_.tokens += result.tokens;
  since_line_.seconds += record.seconds;
  since_line_.data_seconds += record.data_seconds;
  since_line_.model_flops += record.model_flops;
  if (!output_.console()) return;
  const double seconds = since_line_.seconds / static_cast<double>(since_line_.steps);
  const double tokens_per_s = static_cast<double>(since_line_.tokens) / since_line_.seconds;
  const std::vector<engine::ExpertLoad> loads = options_.expert_loads(result);
  StepRow row{.step = record.step,
              .total_steps = options_.total,
              .loss = result.loss,
              .z = statistics_.add(result.loss),
              .grad_norm = result.grad_norm,
              .lr = record.lr,
              .tokens_per_s = tokens_per_s,
              .mfu = since_line_.model_flops / since_line_.seconds / flops_per_s_,
              .step_seconds = seconds,
              .memory_gib = memory_gib,
              .eta_seconds = seconds * static_cast<double>(options_.total - record.step)};
  for (const engine::ExpertLoad& load : loads) {
    row.aux = result.aux_loss;
    row.imbalance = std::max(row.imbalance.value_or(0), load.max_over_mean());
  }
  due(record.step) ? write(record, at, row, loads) : output_.console()->live(row);
}

// Behind the step, and before anything of it is written.
void StepLog::say_overload(const StepRecord& record) {
  if (!output_.console()) return;
  OrderedJson rounds = OrderedJson::object();
  for (const engine::ExpertLoad& load : options_.expert_loads(record.result)) {
    if (load.further_rounds == 0) continue;
    output_.note(cat("step ", record.step, ": more rows came to experts of ", load.name, " than moe.imbalance_limit has room for; they ran in ",
                     load.further_rounds, " further rounds"));
    rounds[load.name] = load.further_rounds;
  }
  if (!rounds.empty()) output_.event("expert_overload", record.step, rounds);
}

void StepLog::write(const StepRecord& record, const RunPosition& at, const StepRow& row, const std::vector<engine::ExpertLoad>& loads) {
  output_.console()->row(row);
  Values values = {{"train/loss", row.loss},
                   {"train/grad_norm", row.grad_norm},
                   {"train/lr", row.lr},
                   {"perf/tokens_per_s", row.tokens_per_s},
                   {"perf/step_ms", row.step_seconds * 1000},
                   {"perf/mfu", row.mfu.value()},
                   {"perf/exposed_comm", record.result.exposed_comm_seconds / record.seconds},
                   {"data/wait", since_line_.data_seconds / since_line_.seconds},
                   {"mem/peak_gib", row.memory_gib}};
  for (const auto& [what, share] : exposed_shares(record.result, record.seconds)) values.emplace_back(what, share);
  since_line_ = {};
  add_losses(record.result, loads, values);
  output_.metrics()->step(row.step, at.consumed_tokens, values);
  OrderedJson by_expert = OrderedJson::object();
  for (const engine::ExpertLoad& load : loads) {
    by_expert[load.name] = load_text(load.routed);
    by_expert[load.name + "/dropped"] = std::llround(load.dropped);
  }
  if (!loads.empty()) output_.event("expert_load", row.step, by_expert);
  if (row.step == began_at_ + 1) options_.behind_first(row.step);
}

void StepLog::sum_up() {
  for (const std::string& text : {exposed_.text(), exposed_.copies_text()})
    if (!text.empty()) output_.note(text);
  say_predicted();
}

void StepLog::say_predicted() {
  if (step_seconds_.empty() || !output_.console()) return;
  const PredictedStep& predicted = options_.predicted.value();
  const double measured = plan::median(step_seconds_);
  const auto steps = static_cast<int64_t>(step_seconds_.size());
  output_.note(beside_measured(predicted, measured, steps));
  output_.event("predicted_step", began_at_ + 1 + steps,
                {{"machine", predicted.machine},
                 {"predicted_ms", predicted.seconds * 1000},
                 {"low_ms", predicted.low * 1000},
                 {"high_ms", predicted.high * 1000},
                 {"measured_ms", measured * 1000},
                 {"steps", steps}});
}

}  // namespace lockstep::train
