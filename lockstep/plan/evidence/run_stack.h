// The software of a published run, by marks that its row has: device, precision, sharding, shape of the model. No source is looked at.
#pragma once

#include <string_view>

#include "lockstep/plan/cluster/usual_cluster.h"
#include "lockstep/plan/evidence/published_run.h"
#include "lockstep/plan/time/stack.h"

namespace lockstep::plan {

// The kernels that a stack had when its device, precision, and the shape of its models were usual:
//   Volta   unfused.
//   Ampere  unfused with fp16; and with an MLP without a gate, the mark of models before the middle of 2023, unless gradients are shared out.
//   Hopper  flash where gradients are shared out (PyTorch's FSDP), without experts and with a precision that is not named by its scaling; else
//           current.
//   others  usual_kernels().
Kernels kernels_of(const PublishedRun& run, const DeviceKind& device);

// Whether a layout is that of PyTorch's FSDP or DeepSpeed rather than of Megatron: gradients, perhaps parameters, are shared out.
bool shards_gradients(const PublishedRun& run);
// Whether a pipeline is DeepSpeed's (runtime/pipe/engine.py): of the unfused era, in bf16 or with ZeRO-1, which Megatron of that time had not, and
// without interleaving and sequence parallelism, which DeepSpeed has not.
bool has_pipeline_engine(const PublishedRun& run, Kernels kernels);
// Linears in FP8 or FP4.
bool low_precision(const PublishedRun& run);
bool is_gated(const RunModel& model);
// Capitals do not matter.
inline bool has_word(std::string_view text, std::string_view word) { return lower(text).find(lower(word)) != std::string::npos; }

// Selective recomputation that keeps the outputs of every second product (PyTorch's selective checkpoints, SAC).
bool recomputes_products(const PublishedRun& run);

// The constants of device and kernels (time/stack.h), and what more the row says:
//   a model without a gate  the first flash kernels, where kernels are flash.
//   FP4                     its own rate of products.
//   SAC                     half the products and all pointwise work made again; of latent attention a quarter of the products, its up-projections.
//   DeepSpeed's pipeline    its engine runs one instruction after the other, and the host waits for each send.
//   DualPipe                exchanges with experts are hidden but for the processors that move rows, and the pipeline's ends.
//   windows and bf16        layers without the window run unfused attention, as the models that mix both have sinks, for which there were no fused
//                           kernels at first. Precision stands for the time here; one family of models (gpt-oss) is all there is to see it by.
Stack stack_of_run(const PublishedRun& run, const DeviceKind& device);

}  // namespace lockstep::plan
