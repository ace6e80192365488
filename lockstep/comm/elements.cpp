#include "lockstep/comm/elements.h"

#include <algorithm>
#include <array>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

// bf16 as its bits: the upper half of an fp32.
struct BFloat16 {
  uint16_t bits;
};

float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

BFloat16 narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;  // rounding could carry a NaN into infinity
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded)};
}

struct Sum {
  template <typename T>
  T operator()(T left, T right) const {
    return left + right;
  }
  BFloat16 operator()(BFloat16 left, BFloat16 right) const { return narrow(widen(left) + widen(right)); }
};

struct Max {
  template <typename T>
  T operator()(T left, T right) const {
    return left > right || left != left ? left : right;
  }
  BFloat16 operator()(BFloat16 left, BFloat16 right) const { return narrow((*this)(widen(left), widen(right))); }
};

template <typename T, typename Op>
void combine(std::byte* out, const std::byte* left, const std::byte* right, size_t bytes) {
  T* to = reinterpret_cast<T*>(out);
  const T* a = reinterpret_cast<const T*>(left);
  const T* b = reinterpret_cast<const T*>(right);
  const Op op;
  for (size_t i = 0; i < bytes / sizeof(T); ++i) to[i] = op(a[i], b[i]);
}

// What a sum of many terms is held in.
float wide(BFloat16 value) { return widen(value); }
template <typename T>
T wide(T value) {
  return value;
}
template <typename T, typename Wide>
T narrowed(Wide value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return narrow(value);
  else
    return value;
}

constexpr size_t kBlock = 1024;  // elements at once, whose sums stay in the first cache

template <typename T, typename Op>
void combine_all(std::byte* out, std::span<const std::byte* const> terms, size_t bytes) {
  if (terms.size() == 2) return combine<T, Op>(out, terms[0], terms[1], bytes);
  using Wide = decltype(wide(T{}));
  const Op op;
  const size_t count = bytes / sizeof(T);
  std::array<Wide, kBlock> sums;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(terms[0]) + begin;
    for (size_t i = 0; i < size; ++i) sums[i] = wide(first[i]);
    for (const std::byte* term : terms.subspan(1)) {
      const T* values = reinterpret_cast<const T*>(term) + begin;
      for (size_t i = 0; i < size; ++i) sums[i] = op(sums[i], wide(values[i]));
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (size_t i = 0; i < size; ++i) to[i] = narrowed<T>(sums[i]);
  }
}

template <typename Op>
CombineAll combine_all_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return combine_all<float, Op>;
    case ElementType::kFloat64:
      return combine_all<double, Op>;
    case ElementType::kBFloat16:
      return combine_all<BFloat16, Op>;
    case ElementType::kInt64:
      return combine_all<int64_t, Op>;
  }
  throw InternalError("no such element type");
}

template <typename Op>
Combine combine_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return combine<float, Op>;
    case ElementType::kFloat64:
      return combine<double, Op>;
    case ElementType::kBFloat16:
      return combine<BFloat16, Op>;
    case ElementType::kInt64:
      return combine<int64_t, Op>;
  }
  throw InternalError("no such element type");
}

}  // namespace

size_t element_size(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return 4;
    case ElementType::kFloat64:
      return 8;
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kInt64:
      return 8;
  }
  throw InternalError("no such element type");
}

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "fp32";
    case ElementType::kFloat64:
      return "fp64";
    case ElementType::kBFloat16:
      return "bf16";
    case ElementType::kInt64:
      return "int64";
  }
  throw InternalError("no such element type");
}

Combine combine_function(ElementType type, ReduceOp op) {
  return op == ReduceOp::kMax ? combine_of<Max>(type) : combine_of<Sum>(type);
}

CombineAll combine_all_function(ElementType type, ReduceOp op) {
  return op == ReduceOp::kMax ? combine_all_of<Max>(type) : combine_all_of<Sum>(type);
}

Reduction reduction_of(ElementType type, ReduceOp op) {
  return {.pair = combine_function(type, op),
          .all = combine_all_function(type, op),
          .rounds_once = type == ElementType::kBFloat16 && op == ReduceOp::kSum};
}

}  // namespace lockstep::comm
