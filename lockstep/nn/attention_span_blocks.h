// What the CPU's attention over spans is made of beside attention_blocks.h: which keys of a block the 48 queries of a block see. Spans
// move forwards, so the first and the last query of any run of queries say where their keys begin and end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/nn/attention_blocks.h"
#include "lockstep/nn/attention_spans.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::blocks {

// The spans of one sequence, for whole blocks of queries: queries behind the end see what the last one sees, and have no value.
struct SpanTable {
  std::vector<int32_t> first, last;
  std::vector<uint8_t> seen;  // by block of keys: whether any query sees one of them
};
// By sequence.
std::vector<SpanTable> tables_of(const AttentionRectangle& rectangle);

struct SpanShapes {
  HeadShape queries, keys, values, outs;  // rows of q; of k; of v; of the output
};
SpanShapes shapes_of(const AttentionRectangle& rectangle);

// Of the 48 queries of a block.
struct QuerySpans {
  const int32_t* first;
  const int32_t* last;
};

// The blocks of keys of which a block of queries sees any, in their order.
class SeenBlocks {
 public:
  static constexpr int64_t kNone = -1;
  explicit SeenBlocks(const QuerySpans& spans) : spans_(spans) {}
  // Where the next one at or behind `key` begins, a multiple of 48 as `key` is; calls go forwards. A query that sees no key behind `key`
  // sees none later, and of the others the first one begins first.
  LOCKSTEP_INLINE int64_t next(int64_t key) {
    for (; query_ < kBlock; ++query_) {
      const int64_t first = std::max<int64_t>(spans_.first[query_], key);
      if (first < spans_.last[query_]) return first / kBlock * kBlock;
    }
    return kNone;
  }

 private:
  QuerySpans spans_;
  int64_t query_ = 0;
};

// Of the keys from .. from + count those that queries [begin, end) of a block see, as rows of a block of scores; others may lie between.
LOCKSTEP_INLINE std::pair<int64_t, int64_t> keys_of(const QuerySpans& spans, int64_t begin, int64_t end, int64_t from, int64_t count) {
  const int64_t first = std::clamp<int64_t>(spans.first[begin] - from, 0, count);
  return {first, std::clamp<int64_t>(spans.last[end - 1] - from, first, count)};
}

// The queries of a block that see any of the keys from .. from + count; others may lie between.
LOCKSTEP_INLINE std::pair<int64_t, int64_t> queries_of(const QuerySpans& spans, int64_t from, int64_t count) {
  int64_t begin = 0, end = kBlock;
  while (begin < end && spans.last[begin] <= from) ++begin;
  while (end > begin && spans.first[end - 1] >= from + count) --end;
  return {begin, end};
}

// Rows [begin, end) of scores hold all keys that sixteen queries see; those of [whole_begin, whole_end) each of them sees.
struct SeenRows {
  int64_t begin, whole_begin, whole_end, end;
  bool whole(int64_t row) const { return row >= whole_begin && row < whole_end; }
};
LOCKSTEP_INLINE SeenRows rows_of_lanes(const QuerySpans& spans, int64_t lane, int64_t from, int64_t count) {
  const auto [begin, end] = keys_of(spans, lane, lane + kLanes, from, count);
  const int64_t whole = std::clamp<int64_t>(spans.first[lane + kLanes - 1] - from, begin, end);
  return {.begin = begin, .whole_begin = whole, .whole_end = std::clamp<int64_t>(spans.last[lane] - from, whole, end), .end = end};
}

// Lane i is set where query lane + i sees `key`.
LOCKSTEP_INLINE vec::Ints sees(const QuerySpans& spans, int64_t lane, int64_t key) {
  vec::Ints first, last;
  std::memcpy(&first, spans.first + lane, sizeof first);
  std::memcpy(&last, spans.last + lane, sizeof last);
  const vec::Ints at = vec::Ints{} + static_cast<int32_t>(key);
  return (first <= at) & (at < last);
}

// scores [48 keys, 48 queries] = keys [48, padded] queries [padded, 48]; keys begin at `from`. Where no query of a vector sees any of
// eight keys nothing is computed and nothing set.
LOCKSTEP_INLINE void seen_scores(const float* keys, const float* queries, const HeadShape& shape, const QuerySpans& spans, int64_t from,
                                 float* scores) {
  for (int64_t row = 0; row < kBlock; row += 8) {
    int64_t begin = 0, end = kBlock;
    while (begin < end && spans.last[begin + kLanes - 1] <= from + row) begin += kLanes;
    while (end > begin && spans.first[end - kLanes] >= from + row + 8) end -= kLanes;
    const tile::Left left{keys + row * shape.padded, shape.padded, 1};
    const float* const right = queries + begin;
    float* const to = scores + row * kBlock + begin;
    if (end - begin == 3 * kLanes) tile::multiply<8, 3, false>(left, right, kBlock, shape.size, to, kBlock);
    if (end - begin == 2 * kLanes) tile::multiply<8, 2, false>(left, right, kBlock, shape.size, to, kBlock);
    if (end - begin == kLanes) tile::multiply<8, 1, false>(left, right, kBlock, shape.size, to, kBlock);
  }
}

// Zeros to rows [begin, end) of sixteen queries.
LOCKSTEP_INLINE void clear_rows(float* scores, int64_t lane, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) vec::store(scores + row * kBlock + lane, kLanes, Floats{});
}

// The blocks of keys or values that any query sees, each at its place.
template <typename T>
LOCKSTEP_INLINE void pack_seen(const Rows<const T>& from, const HeadShape& shape, const SpanTable& table, float* to) {
  for (size_t i = 0; i < table.seen.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * kBlock;
    if (table.seen[i]) pack(from, shape, begin, kBlock, 1.0f, to + begin * shape.padded);
  }
}

// The rows of another head.
template <typename T>
Rows<T> moved(const Rows<T>& rows, int64_t elements) {
  return {rows.data ? rows.data + elements : nullptr, rows.stride};
}

}  // namespace lockstep::nn::blocks

#pragma GCC diagnostic pop
