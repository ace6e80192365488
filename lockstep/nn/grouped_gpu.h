// The products of grouped.h on a GPU. Where they are many and small LibTorch's grouped product makes them in one launch (PyTorch 2.11,
// _grouped_mm; CUTLASS, grouped GEMM), which reads on the device where groups end. Nothing waits for the device.
//
// sizes [G] as in grouped.h. Both forms run on any device: on the CPU the tests compare them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace lockstep::nn {

enum class GroupForm {
  kOneCall,  // bf16 alone, in whole 16 bytes
  kLoop,     // a product for each group that has rows
};

// What grouped_multiply and accumulate_grouped take for operands [R, a] and [R, b] or [G, a, b]: one call for contiguous bf16 at
// addresses of 16 bytes with a and b multiples of 8, on a device whose kernel of that product reads no value on the host
// (cuda::multiplies_groups); the loop for all else, fp32 above all.
GroupForm group_form(const at::Tensor& left, const at::Tensor& right);
// Whether the operands are such, on whatever device.
bool fits_one_call(const at::Tensor& left, const at::Tensor& right);

// rows [R, k], factors [G, k, n], contiguous or the transpose of such -> [R, n]: rows of group g times factors[g].
at::Tensor multiply_groups(const at::Tensor& rows, const at::Tensor& factors, std::span<const int64_t> sizes, GroupForm form);

// grad [G, n, k] fp32 += dy^T x of each group; dy [R, n], x [R, k]. A group without rows adds nothing. One call makes the products of
// as many groups as have room in 256 MiB; where it is one, the loop does. bf16: products are rounded before they are added.
void accumulate_groups(const at::Tensor& dy, const at::Tensor& x, std::span<const int64_t> sizes, const at::Tensor& grad, GroupForm form);

}  // namespace lockstep::nn
