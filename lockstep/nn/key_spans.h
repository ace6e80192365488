// Which keys a query sees: one interval of them, which moves forwards with the queries. Causal attention, sliding windows, documents that
// do not see each other, and any part of the queries of a sequence beside any part of its keys are such intervals.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

struct KeySpans {
  // [B, Sq] int32 each, on the host, contiguous: query i of sequence b sees keys [first, last) of those it is given. Neither falls along
  // i. first >= last: it sees none of them.
  at::Tensor first, last;
};

}  // namespace lockstep::nn
