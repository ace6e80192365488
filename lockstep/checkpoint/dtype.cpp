#include "lockstep/checkpoint/dtype.h"

#include <array>

#include "lockstep/base/check.h"

namespace lockstep::checkpoint {
namespace {

struct Row {
  std::string_view name;
  int bits;
  at::ScalarType type;  // Undefined = none
};

using enum at::ScalarType;
constexpr std::array<Row, 22> kRows = {{
    {"BOOL", 8, Bool},
    {"F4", 4, Undefined},
    {"F6_E2M3", 6, Undefined},
    {"F6_E3M2", 6, Undefined},
    {"U8", 8, Byte},
    {"I8", 8, Char},
    {"F8_E5M2", 8, Float8_e5m2},
    {"F8_E4M3", 8, Float8_e4m3fn},
    {"F8_E8M0", 8, Float8_e8m0fnu},
    {"F8_E4M3FNUZ", 8, Float8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, Float8_e5m2fnuz},
    {"I16", 16, Short},
    {"U16", 16, UInt16},
    {"F16", 16, Half},
    {"BF16", 16, BFloat16},
    {"I32", 32, Int},
    {"U32", 32, UInt32},
    {"F32", 32, Float},
    {"C64", 64, ComplexFloat},
    {"F64", 64, Double},
    {"I64", 64, Long},
    {"U64", 64, UInt64},
}};

Dtype dtype_at(size_t i) {
  return {.name = kRows[i].name, .bits = kRows[i].bits, .order = static_cast<int>(i)};
}

}  // namespace

std::optional<Dtype> find_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return dtype_at(i);
  }
  return std::nullopt;
}

std::optional<at::ScalarType> scalar_type(std::string_view name) {
  const auto dtype = find_dtype(name);
  if (!dtype || kRows[static_cast<size_t>(dtype->order)].type == Undefined) return std::nullopt;
  return kRows[static_cast<size_t>(dtype->order)].type;
}

Dtype dtype_of(at::ScalarType type) {
  size_t i = 0;
  while (i < kRows.size() && kRows[i].type != type) ++i;
  LOCKSTEP_CHECK(i < kRows.size() && type != Undefined, "safetensors has no dtype ", at::toString(type));
  return dtype_at(i);
}

}  // namespace lockstep::checkpoint
