#include "lockstep/nn/window_spans.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace lockstep::nn {

KeySpans spans_in_window(int64_t batch, int64_t length, int64_t window) {
  const KeySpans spans{.first = at::empty({batch, length}, at::kInt), .last = at::empty({batch, length}, at::kInt)};
  int32_t *const first = spans.first.data_ptr<int32_t>(), *const last = spans.last.data_ptr<int32_t>();
  for (int64_t i = 0; i < batch * length; ++i) {
    first[i] = static_cast<int32_t>(std::max<int64_t>(0, i % length - window + 1));
    last[i] = static_cast<int32_t>(i % length + 1);
  }
  return spans;
}

}  // namespace lockstep::nn
