#include "lockstep/parallel/expert/slots.h"

#include <ATen/ops/zeros.h>

#include "lockstep/base/check.h"

namespace lockstep::parallel {

// Dropped rows go to one row more, behind the message.
at::Tensor into_slots(const at::Tensor& rows, const nn::DeviceRouting& routing) {
  const int64_t slots = routing.experts * routing.room;
  LOCKSTEP_CHECK_EQ(rows.size(0), routing.slot.numel(), "rows of assignments");
  const at::Tensor message = at::zeros({slots + 1, rows.size(1)}, rows.options());
  return message.index_copy_(0, routing.slot.view({-1}), rows).narrow(0, 0, slots);
}

at::Tensor out_of_slots(const at::Tensor& message, const nn::DeviceRouting& routing) {
  const int64_t slots = routing.experts * routing.room;
  LOCKSTEP_CHECK_EQ(message.size(0), slots, "rows of a message");
  at::Tensor rows = message.index_select(0, routing.slot.view({-1}).clamp_max(slots - 1));
  return rows.masked_fill_(routing.kept.logical_not().view({-1, 1}), 0);
}

at::Tensor swap_blocks(const at::Tensor& rows, int64_t outer, int64_t inner) {
  const int64_t all = rows.size(0), width = rows.size(1);
  LOCKSTEP_CHECK_EQ(all % (outer * inner), 0, all, " rows of ", outer, " x ", inner, " blocks");
  return rows.view({outer, inner, all / (outer * inner), width}).transpose(0, 1).reshape({all, width});
}

}  // namespace lockstep::parallel
