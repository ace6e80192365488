// A sliding window over whole sequences of one document each (Beltagy et al., Longformer, 2020).
#pragma once

#include <cstdint>

#include "lockstep/nn/key_spans.h"

namespace lockstep::nn {

// Of `batch` sequences of `length` tokens, in order: a query sees `window` tokens, itself included; > 0.
KeySpans spans_in_window(int64_t batch, int64_t length, int64_t window);

}  // namespace lockstep::nn
