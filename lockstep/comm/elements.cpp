#include "lockstep/comm/elements.h"

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

}  // namespace lockstep::comm
