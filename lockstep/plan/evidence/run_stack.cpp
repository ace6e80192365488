#include "lockstep/plan/evidence/run_stack.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

void set(Stack& stack, const char* name, double Stack::*field, double value, const char* origin) {
  stack.*field = value;
  stack.origins[name] = origin;
}

// Dao et al. 2022 by Triton, before FlashAttention 2: over its rates.
void set_first_flash(const DeviceKind& device, Stack& stack) {
  constexpr const char* kOrigin = "first flash kernels over FlashAttention 2: fit on runs of models without a gate";
  const bool hopper = device.generation == Generation::kHopper;
  set(stack, "attention_forward", &Stack::attention_forward, stack.attention_forward * (hopper ? 0.244 / 0.280 : 0.424 / 0.60), kOrigin);
  set(stack, "attention_backward", &Stack::attention_backward, stack.attention_backward * (hopper ? 0.181 / 0.255 : 0.313 / 0.50), kOrigin);
}

// Layers with a gate for which no kernels were fused by hand: of PyTorch's FSDP, with which none come, and of the time of A100, before libraries
// had gates and rotations.
bool is_usually_eager(const PublishedRun& run, const DeviceKind& device) {
  const bool plain = run.layout.precision == "bf16" && is_gated(run.model) && !run.model.experts;
  return plain && (run.layout.zero.value_or(0) == 3 || device.generation == Generation::kAmpere);
}

// How PyTorch ran: norms, rotations and activations one by one, as it does where the row says nothing, or joined by its compiler; gathers of tensor
// parallelism in pieces beside products (symmetric memory).
void set_pytorch(const PublishedRun& run, const DeviceKind& device, Stack& stack) {
  constexpr double kEager = 1.68, kCompiled = 0.72, kAsync = 0.6;
  const bool eager = run.eager || (is_usually_eager(run, device) && !run.compiled && !run.fused);
  if (eager || run.compiled)
    set(stack, "pointwise_factor", &Stack::pointwise_factor, stack.pointwise_factor * (eager ? kEager : kCompiled),
        "eager and compiled over kernels fused by hand: fit on two pairs of one source, in bf16; its pair in FP8 agrees");
  if (run.async)
    set(stack, "tensor_exposed", &Stack::tensor_exposed, stack.tensor_exposed * kAsync, "of the usual: AsyncTP; fit on one pair");
}

void set_restoring(const PublishedRun& run, Stack& stack) {
  if (recomputes_products(run)) {
    set(stack, "restore_products", &Stack::restore_products, 0.5, "every second product (PyTorch, selective checkpoints)");
    set(stack, "restore_pointwise", &Stack::restore_pointwise, 1, "all of it (PyTorch, selective checkpoints)");
  } else if (run.model.latent) {
    set(stack, "restore_products", &Stack::restore_products, 0.25, "up-projections of latent attention (arXiv:2412.19437, section 3.2.3)");
  }
}

// As a share of the peak in FP8, which is what the estimate knows: 0.481 of that in FP4.
void set_fp4(const DeviceKind& device, Stack& stack) {
  constexpr double kCap = 0.481;
  // Dense FP4 over FP8: twice, of Blackwell Ultra 2.8 to 3 times (data sheets).
  const double over_fp8 = has_word(device.name, "GB300") ? 3 : has_word(device.name, "B300") ? 2.8 : 2;
  set(stack, "fp8_cap", &Stack::fp8_cap, kCap * over_fp8, "of FP4: 0.481 of its peak, fit");
}

void set_pipeline_engine(Stack& stack) {
  set(stack, "host_share", &Stack::host_share, 0.28, "DeepSpeed's pipeline engine: runs of three sources, each alone about 0.2 to 0.4");
}

// DualPipe runs a forward beside a backward pass and hides the exchange of the one behind computing of the other, but for the processors that move
// rows (DeepSeek-AI 2024, section 3.2: 20 of 132) and for microbatches that fill and drain the pipeline alone.
void set_dual_pipe(const PublishedRun& run, Stack& stack) {
  const RunLayout& row = run.layout;
  if (!has_word(row.schedule.value_or(""), "DualPipe")) return;
  constexpr double kProcessors = 20.0 / 132;
  const double ranks = static_cast<double>(run.gpus) / static_cast<double>(row.tp.value_or(1) * row.pp.value_or(1) * row.cp.value_or(1));
  const double microbatches = static_cast<double>(row.global_batch.value_or(0)) / (ranks * static_cast<double>(row.micro_batch.value_or(1)));
  const double alone = microbatches > 0 ? std::min(1.0, static_cast<double>(row.pp.value_or(1)) / microbatches) : 1;
  set(stack, "expert_exposed", &Stack::expert_exposed, stack.expert_exposed * (kProcessors + (1 - kProcessors) * alone),
      "of the usual: processors that move rows, and filling and draining the pipeline");
}

}  // namespace

bool shards_gradients(const PublishedRun& run) { return run.layout.zero.value_or(0) >= 2; }

bool has_pipeline_engine(const PublishedRun& run, Kernels kernels) {
  const RunLayout& row = run.layout;
  const bool plain = row.pp.value_or(1) > 1 && row.vpp.value_or(1) == 1 && !row.sequence_parallel.value_or(false);
  return kernels == Kernels::kUnfused && plain && (row.zero.value_or(0) == 1 || row.precision == "bf16");
}

bool low_precision(const PublishedRun& run) { return has_word(run.layout.precision, "fp8") || has_word(run.layout.precision, "fp4"); }

bool recomputes_products(const PublishedRun& run) { return run.layout.recompute && has_word(*run.layout.recompute, "SAC"); }

bool is_gated(const RunModel& model) { return model.gated.value_or(model.experts.has_value()); }

Kernels kernels_of(const PublishedRun& run, const DeviceKind& device) {
  const std::string& precision = run.layout.precision;
  const bool plain = precision.empty() || precision == "bf16" || precision == "fp8";
  switch (device.generation) {
    case Generation::kVolta: return Kernels::kUnfused;
    case Generation::kAmpere: return precision != "fp16" && (is_gated(run.model) || shards_gradients(run)) ? Kernels::kFlash : Kernels::kUnfused;
    case Generation::kHopper: {
      // ZeRO-2 over the stages of a pipeline is of no library of that time.
      const bool own = run.layout.zero == 2 && run.layout.pp.value_or(1) > 1;
      return shards_gradients(run) && !own && !run.model.experts && plain ? Kernels::kFlash : Kernels::kCurrent;
    }
    default: return usual_kernels(device);
  }
}

Stack stack_of_run(const PublishedRun& run, const DeviceKind& device) {
  const Kernels kernels = kernels_of(run, device);
  Stack stack = stack_of(device, kernels);
  if (kernels == Kernels::kFlash && !is_gated(run.model)) set_first_flash(device, stack);
  if (kernels != Kernels::kUnfused) set_pytorch(run, device, stack);
  if (has_word(run.layout.precision, "fp4")) set_fp4(device, stack);
  set_restoring(run, stack);
  if (has_pipeline_engine(run, kernels)) set_pipeline_engine(stack);
  set_dual_pipe(run, stack);
  if (run.model.window && run.layout.precision == "bf16")
    set(stack, "unfused_beside_windows", &Stack::unfused_beside_windows, 1, "runs of gpt-oss in bf16; one family of models");
  return stack;
}

}  // namespace lockstep::plan
