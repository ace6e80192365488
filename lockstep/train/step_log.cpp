#include "lockstep/train/step_log.h"

namespace lockstep::train {

void StepLog::known(const StepRecord& record, const RunPosition& at) {
  const engine::StepResult& result = record.result;
  last_loss_ = result.loss;
  exposed_.add(result, record.seconds);
  const double memory_gib = due(record.step) ? options_.worst_memory_gib() : 0;
  since_line_.steps += 1;
  since_line_.tokens += result.tokens;
  since_line_.seconds += record.seconds;
  since_line_.data_seconds += record.data_seconds;
  if (!output_.console()) return;
  const double seconds = since_line_.seconds / static_cast<double>(since_line_.steps);
  const double tokens_per_s = static_cast<double>(since_line_.tokens) / since_line_.seconds;
  const StepRow row{.step = record.step,
                    .total_steps = options_.total,
                    .loss = result.loss,
                    .z = statistics_.add(result.loss),
                    .grad_norm = result.grad_norm,
                    .lr = record.lr,
                    .tokens_per_s = tokens_per_s,
                    .mfu = tokens_per_s * options_.flops_per_token / flops_per_s_,
                    .step_seconds = seconds,
                    .memory_gib = memory_gib,
                    .eta_seconds = seconds * static_cast<double>(options_.total - record.step)};
  due(record.step) ? write(record, at, row) : output_.console()->live(row);
}

void StepLog::write(const StepRecord& record, const RunPosition& at, const StepRow& row) {
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
  output_.metrics()->step(row.step, at.consumed_tokens, values);
  if (row.step == began_at_ + 1) options_.behind_first(row.step);
}

void StepLog::sum_up() {
  for (const std::string& text : {exposed_.text(), exposed_.copies_text()})
    if (!text.empty()) output_.note(text);
}

}  // namespace lockstep::train
