#include "lockstep/nn/token_places.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

// The place of the first token that each query sees, and behind the last.
struct Seen {
  int64_t first, last;
};
Seen seen_by(const TokenPlaces& places, int64_t token, int64_t window) {
  const int64_t own = places.index.const_data_ptr<int32_t>()[token];
  const int64_t first = places.first_seen.const_data_ptr<int32_t>()[token];
  return {.first = window > 0 ? std::max(first, own - window + 1) : first, .last = own + 1};
}

KeySpans empty_like(const TokenPlaces& places) {
  LOCKSTEP_CHECK(places.index.is_contiguous() && places.first_seen.is_contiguous(), "places with gaps");
  return {.first = at::empty_like(places.index), .last = at::empty_like(places.index)};
}

}  // namespace

KeySpans spans_of(const TokenPlaces& places, int rank, int64_t window) {
  const at::Tensor& keys = places.index_of_ranks.empty() ? places.index : places.index_of_ranks.at(static_cast<size_t>(rank));
  KeySpans spans = empty_like(places);
  const int64_t length = places.index.size(1);
  for (int64_t b = 0; b < places.index.size(0); ++b) {
    const int32_t* const begin = keys.const_data_ptr<int32_t>() + b * keys.size(1);
    const int32_t* const end = begin + keys.size(1);
    const int32_t *first = begin, *last = begin;  // they move forwards with the queries
    for (int64_t i = b * length; i < (b + 1) * length; ++i) {
      const Seen seen = seen_by(places, i, window);
      while (first < end && *first < seen.first) ++first;
      while (last < end && *last < seen.last) ++last;
      spans.first.data_ptr<int32_t>()[i] = static_cast<int32_t>(first - begin);
      spans.last.data_ptr<int32_t>()[i] = static_cast<int32_t>(last - begin);
    }
  }
  return spans;
}

KeySpans spans_of_all(const TokenPlaces& places, int64_t window) {
  KeySpans spans = empty_like(places);
  for (int64_t i = 0; i < places.index.numel(); ++i) {
    const Seen seen = seen_by(places, i, window);
    spans.first.data_ptr<int32_t>()[i] = static_cast<int32_t>(seen.first);
    spans.last.data_ptr<int32_t>()[i] = static_cast<int32_t>(seen.last);
  }
  return spans;
}

}  // namespace lockstep::nn
