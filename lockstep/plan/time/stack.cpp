#include "lockstep/plan/time/stack.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

// A value of a constant and where it comes from.
struct Known {
  const char* name;
  double value;
  const char* origin;
};
using Values = std::vector<Known>;

constexpr const char* kFit = "fit on published runs of this generation and era; prior: starting values of the literature";
constexpr const char* kUsual = "usual of libraries, not fitted";
constexpr const char* kLeft = "90th percentile of errors on sources that the fit had not seen";

// What products reach, by hardware.
Values of_generation(Generation generation) {
  switch (generation) {
    case Generation::kVolta:
      return {{"product_cap", 0.90, "fit at the edge of its prior: one source"}, {"product_depth", 182, kFit}};
    case Generation::kAmpere:
      return {{"product_cap", 0.873, kFit}, {"product_depth", 212, kFit}};
    case Generation::kHopper:
      return {{"product_cap", 0.725, kFit}, {"product_depth", 367, kFit}, {"fp8_cap", 0.692, kFit}, {"fp8_depth", 749, kFit}};
    case Generation::kBlackwell:
      return {{"product_cap", 0.59, "fit on few runs in bf16, below the best measured shapes (0.73 to 0.78)"}, {"product_depth", 625, kFit},
              {"fp8_cap", 0.607, kFit}, {"fp8_depth", 1320, kFit}};
    case Generation::kCdna:
      return {{"product_cap", 0.50, "about the best measured shape of MI300X (0.514): stas00/ml-engineering"}, {"product_depth", 400, kUsual}, {"fp8_cap", 0.45, kUsual}};
    case Generation::kCpu:
      return {{"product_cap", 0.70, "oneDNN on AVX2 and AVX-512; plan --calibrate measures it"}, {"product_depth", 32, kUsual},
              {"memory_share", 0.60, "STREAM over the sum of channels, all cores"}};
    case Generation::kOther:
      return {{"product_cap", 0.70, kUsual}, {"product_depth", 400, kUsual}};
  }
  LOCKSTEP_CHECK(false, "no such generation ", static_cast<int>(generation));
  return {};
}

// Attention cores: of batched products where unfused, else of causal FLOPs at very long sequences.
Values attention_of(Generation generation, Kernels kernels) {
  const bool hopper = generation == Generation::kHopper, blackwell = generation == Generation::kBlackwell;
  if (kernels == Kernels::kUnfused) {
    const double share = generation == Generation::kVolta ? 0.451 : 0.442;
    return {{"attention_forward", share, kFit}, {"attention_backward", share, "as forward, of twice the FLOPs"}, {"attention_ramp", 0, "batched products"}};
  }
  if (kernels == Kernels::kFlash) {
    // FlashAttention 2 was made for A100 and lacks what Hopper has for it (Shah et al. 2024, FlashAttention-3, section 1).
    if (hopper || blackwell) return {{"attention_forward", 0.280, kFit}, {"attention_backward", 0.255, kFit}, {"attention_ramp", 328, kFit}};
    return {{"attention_forward", 0.60, "Dao 2023, FlashAttention-2, figure 5"}, {"attention_backward", 0.50, "Dao 2023, figure 6"}, {"attention_ramp", 328, kFit}};
  }
  if (hopper) return {{"attention_forward", 0.688, kFit}, {"attention_backward", 0.601, kFit}, {"attention_ramp", 468, kFit}};
  if (blackwell) return {{"attention_forward", 0.546, kFit}, {"attention_backward", 0.487, kFit}, {"attention_ramp", 468, kFit}};
  if (generation == Generation::kCdna) return {{"attention_forward", 0.35, kUsual}, {"attention_backward", 0.28, kUsual}};
  return {{"attention_forward", 0.60, "Dao 2023, FlashAttention-2, figure 5"}, {"attention_backward", 0.50, "Dao 2023, figure 6"}};
}

// What libraries of a time overlap, fuse and launch.
Values of_era(Kernels kernels) {
  constexpr const char* kBlocking = "communication and computing in turns (Megatron-LM of 2021); the fit has 1.1";
  constexpr const char* kEager = "eager launches of PyTorch";
  switch (kernels) {
    case Kernels::kUnfused:
      return {{"pointwise_factor", 0.86, kFit}, {"launch", 6e-6, kEager}, {"host_share", 0.042, kFit}, {"softmax_bytes", 8, kFit}, {"logit_bytes", 27, kFit},
              {"tensor_exposed", 1, kBlocking}, {"context_exposed", 1, kBlocking}, {"send_exposed", 0.94, kFit}, {"data_exposed", 0.3, "DDP's buckets, fit"},
              {"shard_exposed", 0.30, kFit}, {"shard_calls", 8, "parameters were gathered tensor by tensor (DeepSpeed of 2021)"},
              {"shard_nics", 1, "tensors too small to fill several NICs: DeepSpeed of 2021"}, {"band", 0.18, kLeft}};
    case Kernels::kFlash:
      return {{"pointwise_factor", 0.785, kFit}, {"launch", 6e-6, kEager}, {"host_share", 0.05, kFit}, {"logit_bytes", 25, kFit}, {"tensor_exposed", 0.52, kFit},
              {"context_exposed", 0.475, kFit}, {"send_exposed", 1, kFit},
              {"data_exposed", 1, "gradients of several microbatches are summed behind the backward pass: InternLM on 8 to 1024 devices"},
              {"shard_exposed", 0.30, kFit}, {"band", 0.15, kLeft}};
    case Kernels::kCurrent:
      return {{"pointwise_factor", 0.89, kFit}, {"launch", 2e-6, "kernels in CUDA graphs"}, {"logit_bytes", 20, kFit},
              {"host_share", 0.035, "fit by closed forms 0.053, less what the walk itself exposes of pipelines and gathers"},
              {"tensor_exposed", 0.33, kFit}, {"context_exposed", 0.475, kFit}, {"send_exposed", 0.32, kFit}, {"data_exposed", 0.17, kFit},
              {"expert_exposed", 0.68, "fit: 0.91 of a transfer at full rate, of which all-to-all has 0.8"},
              {"shard_exposed", 0.37, kFit}, {"band", 0.12, kLeft}};
  }
  LOCKSTEP_CHECK(false, "no such era ", static_cast<int>(kernels));
  return {};
}

// This library's own kernels and executor, on cores that compute and copy.
Values of_cpu() {
  constexpr const char* kOwn = "lockstep on CPU ranks; plan --calibrate measures it";
  constexpr const char* kCores = "cores that compute copy and sum, too";
  return {{"attention_forward", 0.30, kOwn}, {"attention_backward", 0.30, kOwn}, {"attention_ramp", 0, kOwn},   {"narrow_heads", 1, kOwn},
          {"pointwise_factor", 1, kOwn},     {"launch", 5e-6, kOwn},             {"host_share", 0.02, kOwn},    {"tensor_exposed", 1, kOwn},
          {"context_exposed", 1, kOwn},      {"send_exposed", 0, kOwn},          {"data_exposed", 1, kCores},   {"shard_exposed", 1, kCores},
          {"network_share", 1, kOwn},        {"straggle", 0, kOwn},              {"recompute_outputs", 0, "engine: nobody reads them"},
          {"expert_host", 0, kOwn},          {"reserved", 0, kOwn},              {"optimizer_bytes", 28, "AdamW in fp32: p, g, m, v read, p, m, v written"}};
}

Values of_any() {
  return {{"memory_share", 0.80, "STREAM on GPUs reaches 0.8 to 0.9; fixed"},
          {"straggle", 0.0027, "fit on one layout on 16 to 2304 devices"},
          {"network_share", 0.90, "collectives inside training against the same alone; fixed"},
          {"cast_bytes", 3.8, "fit; read in 2 bytes, written in 1, read for the largest value"},
          {"narrow_heads", 0.93, kFit},
          {"expert_host", 2.6e-3, "fit on hosts with x86 processors: launches and waits for counts of tokens"},
          {"optimizer_bytes", 34, "AdamW with fp32 masters: gradient twice, three values read and written, a bf16 copy"},
          {"reserved", 2.2e9, "context, communicators and workspaces: 1.5 to 3 GB"},
          {"fragmentation", 0.02, "peaks that torchtitan's logs print against tensors"},
          {"restore_pointwise", 0.4, "norms and activations among the bytes of a block"},
          {"restore_products", 0, "products are kept"},
          {"recompute_outputs", 1, "frameworks run the layer as it is"},
          {"unfused_beside_windows", 0, "fused kernels have windows and sinks since 2026"},
          {"shard_calls", 1, "a layer's parameters lie in one buffer"},
          {"shard_nics", 0, "NCCL uses the NICs of all ranks"},
          {"fp8_band", 0.14, kLeft},
          {"expert_band", 0.34, kLeft}};
}

double Stack::*field_of(std::string_view name) {
  for (const auto& [known, field] : stack_constants())
    if (known == name) return field;
  LOCKSTEP_CHECK(false, name, " is no constant of a stack");
  return nullptr;
}

void set(Stack& stack, const Values& values) {
  for (const Known& known : values) {
    stack.*field_of(known.name) = known.value;
    stack.origins[known.name] = known.origin;
  }
}

void scale(Stack& stack, std::initializer_list<const char*> names, double by, const std::string& origin) {
  for (const char* name : names) {
    stack.*field_of(name) *= by;
    stack.origins[name] = origin;
  }
}

// Models reach the same share of a device's best measured shape as on the device that runs were fitted on; of devices of no fitted generation as
// on H100.
void adapt_products(const DeviceKind& device, Stack& stack) {
  const Generation generation = device.generation;
  if (generation == Generation::kCpu || generation == Generation::kVolta || generation == Generation::kBlackwell) return;
  const DeviceKind& fitted = device_kind(generation == Generation::kAmpere ? "a100" : "h100");
  constexpr std::pair<const char*, double DeviceKind::*> kBests[] = {{"product_cap", &DeviceKind::best_bf16}, {"fp8_cap", &DeviceKind::best_fp8}};
  for (const auto& [name, best] : kBests) {
    if (device.*best <= 0 || fitted.*best <= 0 || device.*best == fitted.*best) continue;
    const Values values = of_generation(fitted.generation);
    const double cap = std::ranges::find(values, std::string_view(name), &Known::name)->value;
    set(stack, {{name, std::min(1.0, cap * device.*best / (fitted.*best)), ""}});
    stack.origins[name] = cat("that of ", fitted.name, ", times the best shape measured here over the best there");
  }
}

// What devices of one generation differ in beside their data sheets.
void adapt(const DeviceKind& device, Stack& stack) {
  adapt_products(device, stack);
  // One that promises more FLOP/s for each watt than H100 cannot hold its clock.
  constexpr double kUsualFlopsPerWatt = 989e12 / 700, kExponent = 0.39;
  const double excess = device.watts > 0 ? device.flops_bf16 / device.watts / kUsualFlopsPerWatt : 1;
  if (device.generation == Generation::kHopper && excess > 1.01)
    scale(stack, {"product_cap", "fp8_cap", "attention_forward", "attention_backward"}, std::pow(excess, -kExponent),
          cat("that of 700 W, times (FLOP/s for each watt over those of H100) ^ -", kExponent, ": fit on 500 W"));
  constexpr double kUltraClock = 1.26;
  if (device.name.starts_with("GB300"))
    scale(stack, {"product_cap", "fp8_cap", "attention_forward", "attention_backward"}, kUltraClock,
          cat("that of Blackwell, times ", kUltraClock, " at 1400 W and the same nominal peak: fit, one source"));
  const bool grace = device.name.starts_with("GB") || device.name.starts_with("GH");
  if (grace) set(stack, {{"expert_host", 1.66e-3, "fit on Grace hosts"}});
  if (device.generation == Generation::kBlackwell) set(stack, {{"band", 0.16, kLeft}, {"expert_band", 0.40, kLeft}});
  if (device.generation == Generation::kVolta) set(stack, {{"band", 0.19, kLeft}});
  if (device.generation == Generation::kHopper && stack.kernels == Kernels::kFlash) set(stack, {{"band", 0.20, kLeft}});
  if (device.generation == Generation::kCdna) set(stack, {{"band", 0.20, "no runs to fit on: as where an era has few"}});
}

std::string_view generation_name(Generation generation) {
  switch (generation) {
    case Generation::kCpu: return "CPU";
    case Generation::kVolta: return "Volta";
    case Generation::kAmpere: return "Ampere";
    case Generation::kHopper: return "Hopper";
    case Generation::kBlackwell: return "Blackwell";
    case Generation::kCdna: return "CDNA";
    case Generation::kOther: return "other devices";
  }
  LOCKSTEP_CHECK(false, "no such generation ", static_cast<int>(generation));
  return "";
}

}  // namespace

std::string_view kernels_name(Kernels kernels) {
  switch (kernels) {
    case Kernels::kUnfused: return "unfused";
    case Kernels::kFlash: return "flash";
    case Kernels::kCurrent: return "current";
  }
  LOCKSTEP_CHECK(false, "no such era ", static_cast<int>(kernels));
  return "";
}

Kernels usual_kernels(const DeviceKind& device) { return device.generation == Generation::kVolta ? Kernels::kUnfused : Kernels::kCurrent; }

Stack stack_of(const DeviceKind& device, Kernels kernels) {
  const bool cpu = device.generation == Generation::kCpu;
  Stack stack{.name = cat(generation_name(device.generation), cpu ? "" : cat(", ", kernels_name(kernels), " kernels")), .kernels = cpu ? Kernels::kCurrent : kernels};
  for (const auto& [name, field] : stack_constants()) stack.origins[name] = kUsual;
  set(stack, of_any());
  set(stack, of_generation(device.generation));
  set(stack, cpu ? of_cpu() : of_era(kernels));
  if (!cpu) set(stack, attention_of(device.generation, kernels));
  adapt(device, stack);
  return stack;
}

std::vector<std::pair<std::string, double Stack::*>> stack_constants() {
  return {{"product_cap", &Stack::product_cap},
          {"product_depth", &Stack::product_depth},
          {"fp8_cap", &Stack::fp8_cap},
          {"fp8_depth", &Stack::fp8_depth},
          {"cast_bytes", &Stack::cast_bytes},
          {"memory_share", &Stack::memory_share},
          {"pointwise_factor", &Stack::pointwise_factor},
          {"attention_forward", &Stack::attention_forward},
          {"attention_backward", &Stack::attention_backward},
          {"attention_ramp", &Stack::attention_ramp},
          {"narrow_heads", &Stack::narrow_heads},
          {"softmax_bytes", &Stack::softmax_bytes},
          {"logit_bytes", &Stack::logit_bytes},
          {"unfused_beside_windows", &Stack::unfused_beside_windows},
          {"recompute_outputs", &Stack::recompute_outputs},
          {"restore_products", &Stack::restore_products},
          {"restore_pointwise", &Stack::restore_pointwise},
          {"optimizer_bytes", &Stack::optimizer_bytes},
          {"launch", &Stack::launch},
          {"host_share", &Stack::host_share},
          {"expert_host", &Stack::expert_host},
          {"tensor_exposed", &Stack::tensor_exposed},
          {"context_exposed", &Stack::context_exposed},
          {"expert_exposed", &Stack::expert_exposed},
          {"send_exposed", &Stack::send_exposed},
          {"data_exposed", &Stack::data_exposed},
          {"shard_exposed", &Stack::shard_exposed},
          {"shard_calls", &Stack::shard_calls},
          {"shard_nics", &Stack::shard_nics},
          {"network_share", &Stack::network_share},
          {"straggle", &Stack::straggle},
          {"reserved", &Stack::reserved},
          {"fragmentation", &Stack::fragmentation},
          {"band", &Stack::band},
          {"fp8_band", &Stack::fp8_band},
          {"expert_band", &Stack::expert_band}};
}

std::string stack_text(const Stack& stack) {
  std::string text = cat(stack.name, "\n");
  for (const auto& [name, field] : stack_constants()) {
    const auto origin = stack.origins.find(name);
    text += cat("  ", pad_right(name, 24), pad_left(number_text(stack.*field), 10), "  ", origin == stack.origins.end() ? "" : origin->second, "\n");
  }
  return text;
}

}  // namespace lockstep::plan
