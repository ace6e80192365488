// The element types that can be communicated, and sums and maxima of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::comm {

enum class ReduceOp { kSum, kMax };
enum class ElementType : int8_t { kFloat32, kFloat64, kBFloat16, kInt64 };

size_t element_size(ElementType type);
std::string_view element_name(ElementType type);  // "fp32", "fp64", "bf16", "int64"

// Elements of the parts to and from each rank, by group rank, in an exchange of unequal parts. Empty in any other call.
struct PartSizes {
  std::vector<int64_t> sent{};
  std::vector<int64_t> received{};
};

// out[i] = left[i] (op) right[i]; `out` may be `left` or `right`. A bf16 sum is taken in fp32 and rounded to nearest
// even, once per addition. A maximum with a NaN is NaN.
using Combine = void (*)(std::byte* out, const std::byte* left, const std::byte* right, size_t bytes);
Combine combine_function(ElementType type, ReduceOp op);

// out[i] = terms[0][i] (op) terms[1][i] (op) ..., from left to right; `out` may be one of the terms. A bf16 sum is taken in
// fp32 and rounded once.
using CombineAll = void (*)(std::byte* out, std::span<const std::byte* const> terms, size_t bytes);
CombineAll combine_all_function(ElementType type, ReduceOp op);

// How a call combines the elements of its ranks.
struct Reduction {
  Combine pair;
  CombineAll all;
  // Whether a chain of `pair` gives other bits than `all`.
  bool rounds_once = false;
};
Reduction reduction_of(ElementType type, ReduceOp op);

}  // namespace lockstep::comm
