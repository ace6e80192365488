// Operators of the emulated device that have no kernel of their own here: the CPU's, over the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace lockstep::testing::gpu {

// Any operator. Refuses tensors of the CPU beside those of the device, but for single numbers, as CUDA does.
void run_on_host_memory(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// One that only makes views: it touches no value, and its kernel for the CPU takes any device.
void run_as_it_is(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// The same where it may move values to other memory.
void run_resize(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace lockstep::testing::gpu
