// How well software uses a device: the few numbers between what hardware could do and what it does. Each has an origin; none belongs to one
// published source. Frozen for each generation of devices and era of kernels in stack.cpp; `plan --calibrate` and a [stack] table of a file change them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

enum class Kernels {
  kUnfused,  // 2020 to 2022: attention as batched products and softmax, pointwise work in pieces
  kFlash,    // 2023: FlashAttention 2, fused norms and activations
  kCurrent,  // 2024 on: FlashAttention 3 or cuDNN, FP8 linears, overlapped tensor parallelism
};
std::string_view kernels_name(Kernels kernels);

struct Stack {
  std::string name{};
  Kernels kernels = Kernels::kCurrent;
  // Products: share of the peak that large ones reach, and the depth k at which they reach half of that.
  double product_cap = 0.74, product_depth = 400;
  double fp8_cap = 0.65;
  double memory_share = 0.80;       // of memory bandwidth that pointwise work gets
  double pointwise_factor = 1;      // passes over memory beside those of fused kernels
  double attention_forward = 0.6, attention_backward = 0.5;  // share of the peak
  double launch = 2e-6;             // seconds of a kernel
  double host_share = 0.05;         // of the time of kernels that the host adds
  // Share of a communication that computing does not hide.
  double tensor_exposed = 0.4, context_exposed = 0.5, expert_exposed = 1, send_exposed = 1;
  double network_share = 0.90;      // of a collective's rate alone that it has beside computing
  double straggle = 0;              // of a step, for each doubling of nodes; on CPUs of every step: cores that wait for each other
  double optimizer_bytes = 34;      // of memory that a parameter's update reads and writes
  double fp8_depth = 749;           // product_depth of linears in FP8 ...
  double cast_bytes = 3.8;          // ... and memory traffic for each element of an operand that is cast for them
  double attention_ramp = 468;      // keys at which attention reaches half of its share; 0: it always has all
  double narrow_heads = 0.93;       // of that share, what heads of 64 numbers and less get
  double softmax_bytes = 8;         // unfused: of memory for each score, forward; backward twice
  double logit_bytes = 20;          // of memory for each logit, forward and backward
  // 1: of models with a window in some layers, the layers without one run unfused, as where no fused kernel has what those models need (sinks).
  double unfused_beside_windows = 0;
  double recompute_outputs = 1;     // 1: full recomputation makes a layer's output again, too, which nobody needs; 0: it does not
  // What selective recomputation makes again of a layer's forward work; with unfused kernels attention cores beside that.
  double restore_products = 0, restore_pointwise = 0.4;
  // What computing loses while gradients or parameters travel beside it, as a share of the time that takes. Where they come and go with each layer
  // (FSDP): of a layer's computing and what travels beside it, the longer one and this share of the shorter.
  double data_exposed = 0.17, shard_exposed = 0.37;
  double shard_calls = 1;           // collectives by which one layer's parameters are gathered, or its gradients reduced ...
  double shard_nics = 0;            // ... and NICs of a node that they use; 0: those of all their ranks
  double expert_host = 0;           // seconds that a layer with experts takes at least, forward; backward twice: the host's launches
  double reserved = 2.2e9;          // bytes: context, communicators, workspaces
  double fragmentation = 0.04;      // of what is allocated
  std::map<std::string, std::string> origins{};  // by field
  double band = 0.08;               // half of the band that holds 9 of 10
  double fp8_band = 0.125;          // the same of linears in FP8 ...
  double expert_band = 0.34;        // ... and of models with experts, whose software changes most
};

// Of a device and an era; the current one where none is said.
Stack stack_of(const DeviceKind& device, Kernels kernels);
Kernels usual_kernels(const DeviceKind& device);
// Fields by name, for sensitivity and calibration: all doubles above.
std::vector<std::pair<std::string, double Stack::*>> stack_constants();
std::string stack_text(const Stack& stack);  // a table: field, value, origin

}  // namespace lockstep::plan
