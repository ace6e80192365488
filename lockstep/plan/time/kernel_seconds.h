// How long the kernels of one layer take for one microbatch on one rank: a fold over its description (arch/layer_description.h). Products by
// product_seconds.h; attention cores by their FLOPs and the share of the peak that a generation of kernels reaches; pointwise work by the
// memory traffic of fused kernels (Korthikanti et al. 2022 count the same tensors).
#pragma once

#include <array>

#include "lockstep/arch/layer_description.h"
#include "lockstep/plan/time/product_seconds.h"
#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {

// Seconds of kernels alone.
struct KernelTimes {
  double products = 0, attention = 0, pointwise = 0;
  double sum() const { return products + attention + pointwise; }
  KernelTimes& operator+=(const KernelTimes& other);
  KernelTimes scaled(double by) const { return {products * by, attention * by, pointwise * by}; }
};

// Of one pass in the parts in which a divided layer runs (program::Action::part); of other layers all is in the first.
using PartTimes = std::array<KernelTimes, 3>;
KernelTimes sum(const PartTimes& parts);

struct LayerKernels {
  PartTimes forward{}, input{}, weight{};
  PartTimes again{};  // full recomputation
  PartTimes restore{};  // selective
};

class KernelSeconds {
 public:
  // Device, stack and options outlive it. `speed`: share of its full speed at which the device runs.
  KernelSeconds(const DeviceKind& device, const Stack& stack, const EstimateOptions& options, double speed = 1);

  // `input` is that of the rank (Layout::cost_input). By phases:
  //   linears           one product each for output, input gradient, weight gradient; in FP8 with the casts of the operands that each reads
  //   experts           grouped products of rows / experts rows each, times EstimateOptions::imbalance
  //   attention cores   forward FLOPs / (peak x attention_forward x ramp), ramp = keys / (keys + attention_ramp), backward the same with its
  //                     own share; unfused: batched products of whole squares and softmax_bytes for each score, backward twice
  //   scans             of state spaces: the larger of FLOPs at the cap and the traffic of tokens' operands
  //   pointwise, block  bytes: 11 h for each branch and row, (8 g + 8) f for an MLP, the same and 12 h for each row that goes to an expert,
  //                     16 for each score of a router; g = 2 with a gate, else 1; times pointwise_factor; backward twice
  //   embedding, head   4 h and 12 h for a token; logit_bytes for each logit, in I
  // On a CPU pointwise work is what the description counts. Selective recomputation makes restore_pointwise and restore_products of forward work
  // again (norms and activations; every second product), and with unfused kernels attention cores (Korthikanti et al. 2022).
  LayerKernels of(const arch::ModelConfig& model, const arch::LayerSpec& layer, const arch::CostInput& input) const;
  // With its description at hand.
  LayerKernels of(const arch::ModelConfig& model, const arch::LayerSpec& layer, const arch::CostInput& input, const arch::LayerDescription& description) const;

  // An update of so many parameters, and the FLOPs of matrices that are orthogonalised for it.
  double update(double parameters, double flops) const;
  const ProductSeconds& products() const { return products_; }

 private:
  friend class KernelFold;
  const DeviceKind& device_;
  const Stack& stack_;
  const EstimateOptions& options_;
  ProductSeconds products_;
  const double speed_;
};

}  // namespace lockstep::plan
