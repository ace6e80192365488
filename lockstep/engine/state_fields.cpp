#include "lockstep/engine/state_fields.h"

#include <c10/core/ScalarType.h>

#include "lockstep/base/text.h"

namespace lockstep::engine {

at::ScalarType scalar_type(config::Precision precision) {
  return precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

StateFields::StateFields(int64_t numel, const std::vector<arch::SlotBuffer>& slots, bool compute_copy) {
  fields_.push_back({.name = "values", .numel = numel});
  for (const arch::SlotBuffer& slot : slots)
    fields_.push_back({.name = cat(slot.text, "s"), .dtype = scalar_type(slot.dtype), .numel = slot.numel});
  updated_ = fields_.size();
  if (compute_copy) fields_.push_back({.name = "bf16 copy", .dtype = at::kBFloat16, .numel = numel});
}

int64_t StateFields::bytes(size_t field) const {
  return numel(field) * static_cast<int64_t>(c10::elementSize(dtype(field)));
}

int64_t StateFields::bytes_before(size_t field) const {
  int64_t sum = 0;
  for (size_t i = 0; i < field; ++i) sum += bytes(i);
  return sum;
}

}  // namespace lockstep::engine
