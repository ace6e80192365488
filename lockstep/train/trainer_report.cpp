// What a run tells of its steps, its memory and its checkpoints.
#include <ATen/ops/tensor.h>

#include "lockstep/arch/cost.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/train/start.h"
#include "lockstep/train/trainer.h"
#include "lockstep/train/trainer_console.h"

namespace lockstep::train {

// The step is made anew with the next batch: the optimizer has not seen this one.
void Trainer::report_skipped(const engine::StepResult& result) {
  constexpr int64_t kMost = 10;
  ++skipped_in_a_row_;
  note(cat("skipped a batch at step ", step_ + 1, ": a gradient is not finite (", result.skipped, ")"));
  if (rank0_) rank0_->metrics.event("nonfinite", step_ + 1, {{"skipped", true}, {"names", result.skipped}});
  if (skipped_in_a_row_ == kMost)
    throw DivergedError({.code = "LS5001",
                         .what = cat("step ", step_ + 1, ": a gradient is not finite in ", kMost,
                                     " batches one after the other (now ", result.skipped, ")"),
                         .way_out = "the weights themselves may be too large; go on from an earlier checkpoint with a lower "
                                    "optimizer.lr"});
}

double Trainer::worst_memory_gib() {
  const at::Tensor bytes = at::tensor({executor_.measured_memory().peak}, at::kLong);
  groups_.world()
      .all_reduce(bytes, {.site = "memory", .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax})
      .wait();
  return static_cast<double>(bytes.item<int64_t>()) / static_cast<double>(kGiB);
}

bool Trainer::logged(int64_t step) const {
  return step % config().train.log_every == 0 || step == resumed_at_ + 1 || step == config().train.steps;
}

// Speed is that of all steps since the last line.
void Trainer::log_step(const engine::StepResult& result, const StepTime& time) {
  const double memory_gib = logged(time.step) ? worst_memory_gib() : 0;
  since_line_.steps += 1;
  since_line_.tokens += result.tokens;
  since_line_.seconds += time.seconds;
  since_line_.data_seconds += time.data_seconds;
  if (!rank0_) return;
  const double seconds = since_line_.seconds / static_cast<double>(since_line_.steps);
  const double tokens_per_s = static_cast<double>(since_line_.tokens) / since_line_.seconds;
  const double flops_per_s = tokens_per_s * arch::model_flops_per_token(job_.layout.model, job_.layout.seq_len);
  const double mfu = flops_per_s / (gemm_rate_ * job_.world.size());
  const StepRow row{.step = time.step,
                    .total_steps = config().train.steps,
                    .loss = result.loss,
                    .z = rank0_->statistics.add(result.loss),
                    .grad_norm = result.grad_norm,
                    .lr = time.lr,
                    .tokens_per_s = tokens_per_s,
                    .mfu = mfu,
                    .step_seconds = seconds,
                    .memory_gib = memory_gib,
                    .eta_seconds = seconds * static_cast<double>(config().train.steps - time.step)};
  if (!logged(time.step)) return rank0_->console.live(row);
  rank0_->console.row(row);
  Values values = {{"train/loss", result.loss},
                   {"train/grad_norm", result.grad_norm},
                   {"train/lr", time.lr},
                   {"perf/tokens_per_s", tokens_per_s},
                   {"perf/step_ms", seconds * 1000},
                   {"perf/mfu", mfu},
                   {"perf/exposed_comm", time.result.exposed_comm_seconds / time.seconds},
                   {"data/wait", since_line_.data_seconds / since_line_.seconds},
                   {"mem/peak_gib", memory_gib}};
  for (const auto& [what, share] : exposed_shares(time.result, time.seconds)) values.emplace_back(what, share);
  since_line_ = {};
  rank0_->metrics.step(time.step, consumed_tokens_, values);
  if (time.step == resumed_at_ + 1) compare_memory();
}

void Trainer::compare_memory() {
  const program::MemoryBytes predicted = program::predict_memory(job_.layout, executor_.program(), job_.world.rank());
  const program::MemoryBytes measured = executor_.measured_memory();
  for (const std::string& line : split(memory_comparison(predicted, measured), '\n')) note(line);
  OrderedJson values;
  for (const auto& [kind, bytes] : {std::pair{"predicted", predicted}, {"measured", measured}}) {
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      values[cat(kind, "/", program::category_name(static_cast<program::MemoryCategory>(i)))] = bytes.bytes[i];
    values[cat(kind, "/peak")] = bytes.peak;
  }
  rank0_->metrics.event("memory", step_, values);
}

void Trainer::report_saved(const std::optional<checkpoint::SaveResult>& saved) {
  if (!saved) return;
  note(cat("checkpoint ", saved->path.string(), "  ", format_bytes(static_cast<double>(saved->bytes)), " in ",
           format_duration(saved->seconds)));
  if (rank0_)
    rank0_->metrics.event("checkpoint", saved->step, {{"path", saved->path.string()}, {"seconds", saved->seconds}});
  if (saved->warning.empty() || std::exchange(warned_of_latest_, true)) return;
  log_.warn(saved->warning);
  if (rank0_) rank0_->console.note(cat("warning: ", saved->warning));
}

}  // namespace lockstep::train
