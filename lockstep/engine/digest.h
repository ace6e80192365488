// 64 bits that stand for the values of a tensor: equal bits, equal digest; a tensor of which any bit was flipped has
// another one. Made where the tensor lies, at the speed of its memory. Digests of one kind of device are comparable, those
// of a CPU and a GPU are not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::engine {

// One per tensor. Contiguous; of any element type. On the CPU xxh3 by all compute threads; elsewhere device_digest(), and one
// copy of all results to the host.
std::vector<int64_t> digests(const std::vector<at::Tensor>& tensors);

// By integer operations of ATen, [] int64 on the tensor's device: sums of rows and of columns of the bits, weighted by
// their place. Element types of 2 and 4 bytes; takes at most 16 MiB beside the tensor.
at::Tensor device_digest(const at::Tensor& tensor);

}  // namespace lockstep::engine
