#include "lockstep/engine/state_fields.h"

#include <c10/core/ScalarType.h>

#include "lockstep/base/text.h"

namespace lockstep::engine {

at::ScalarType scalar_type(config::Precision precision) {
  return precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

StateFields::StateFields(const arch::OptimizerSpec& optimizer, bool compute_copy) {
  fields_.push_back({.name = "values"});
  for (const arch::StateSlot& slot : optimizer.slots)
    fields_.push_back({.name = cat(slot.text, "s"), .dtype = scalar_type(slot.dtype)});
  updated_ = fields_.size();
  if (compute_copy) fields_.push_back({.name = "bf16 copy", .dtype = at::kBFloat16});
}

int64_t StateFields::bytes(size_t field, int64_t numel) const {
  return numel * static_cast<int64_t>(c10::elementSize(dtype(field)));
}

int64_t StateFields::bytes_before(size_t field, int64_t numel) const {
  int64_t sum = 0;
  for (size_t i = 0; i < field; ++i) sum += bytes(i, numel);
  return sum;
}

}  // namespace lockstep::engine
