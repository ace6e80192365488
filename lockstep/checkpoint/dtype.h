// The dtypes of safetensors and their LibTorch counterparts.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace lockstep::checkpoint {

struct Dtype {
  std::string_view name;  // "BF16"
  int bits = 0;           // of one element; fewer than 8 for the packed ones
  int order = 0;          // place in the format's own list: wider alignment later
};

// Nothing for a name the format does not have.
std::optional<Dtype> find_dtype(std::string_view name);

// Nothing where LibTorch has no such dtype (the packed ones of 4 and 6 bits).
std::optional<at::ScalarType> scalar_type(std::string_view name);

// InternalError for a scalar type that the format does not have.
Dtype dtype_of(at::ScalarType type);

}  // namespace lockstep::checkpoint
