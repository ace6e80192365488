// What both passes of the CPU's attention are made of: a head's rows packed for the tiles of tile.h, blocks of scores.
// Scores are held transposed, [keys, queries]: softmax then runs down the columns, sixteen queries at a time, without a
// sum across a vector. A head's queries are cut into blocks of 48, its keys too; 48 is a multiple of every tile's rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lockstep/base/check.h"
#include "lockstep/nn/attention_cpu.h"
#include "lockstep/nn/tile.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::blocks {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kBlock = 48;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// One head of a tensor: row s at data + s * stride.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

struct HeadShape {
  int64_t seq;
  int64_t size;    // of rows: K of q and k
  int64_t padded;  // the larger of K and the width of v as a multiple of 16: the length of packed rows
  int64_t value;   // width of v
  float scale;     // of scores
};

// Of rows of v and of the output.
inline HeadShape value_rows(HeadShape shape) {
  shape.size = shape.value;
  return shape;
}

// rows [begin, begin + count) times `scale`; elements and rows beyond the head's are zero.
template <typename T>
LOCKSTEP_INLINE void pack(const Rows<const T>& from, const HeadShape& shape, int64_t begin, int64_t count, float scale,
                          float* to) {
  constexpr int64_t kAhead = 12;  // rows lie too far apart for the processor to see the next one coming
  for (int64_t row = 0; row < count; ++row) {
    if (begin + row + kAhead < shape.seq) {
      const auto* ahead = reinterpret_cast<const char*>(from.data + (begin + row + kAhead) * from.stride);
      for (size_t line = 0; line < static_cast<size_t>(shape.size) * sizeof(T); line += 64)
        __builtin_prefetch(ahead + line);
    }
    for (int64_t i = 0; i < shape.padded; i += kLanes) {
      Floats x{};
      if (begin + row < shape.seq && i < shape.size) vec::load(from.data + (begin + row) * from.stride + i, shape.size - i, x);
      vec::store(to + row * shape.padded + i, kLanes, x * scale);
    }
  }
}

// [48, padded] -> [padded, 48]
LOCKSTEP_INLINE void transpose_block(const float* from, int64_t padded, float* to) {
  for (int64_t row = 0; row < kBlock; row += kLanes) {
    for (int64_t column = 0; column < padded; column += kLanes) {
      Floats block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) vec::load(from + (row + i) * padded + column, kLanes, block[i]);
      tile::transpose(block);
      for (int64_t i = 0; i < kLanes; ++i) vec::store(to + (column + i) * kBlock + row, kLanes, block[i]);
    }
  }
}

// scores [48 keys, 48 queries] = keys [48, padded] queries [padded, 48]. Of the block on the diagonal what lies left of
// a key's own vector of queries is set to zero instead.
LOCKSTEP_INLINE void scores_of(const float* keys, const float* queries, const HeadShape& shape, bool diagonal,
                               float* scores) {
  for (int64_t key = 0; key < kBlock; key += 8) {
    const tile::Left left{keys + key * shape.padded, shape.padded, 1};
    float* to = scores + key * kBlock;
    const int64_t skipped = diagonal ? key / kLanes : 0;
    if (skipped == 0) tile::multiply<8, 3, false>(left, queries, kBlock, shape.size, to, kBlock);
    if (skipped == 1) tile::multiply<8, 2, false>(left, queries + kLanes, kBlock, shape.size, to + kLanes, kBlock);
    if (skipped == 2)
      tile::multiply<8, 1, false>(left, queries + 2 * kLanes, kBlock, shape.size, to + 2 * kLanes, kBlock);
    for (int64_t row = 0; row < 8; ++row)
      for (int64_t vector = 0; vector < skipped; ++vector)
        vec::store(to + row * kBlock + vector * kLanes, kLanes, Floats{});
  }
}

// Lane i is 1 where query first + i may look at `key`.
LOCKSTEP_INLINE vec::Ints visible(int64_t key, int64_t first) {
  vec::Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes + static_cast<int32_t>(first) >= static_cast<int32_t>(key);
}

template <typename T>
LOCKSTEP_INLINE void unpack(const float* from, const HeadShape& shape, int64_t begin, int64_t count, float scale,
                            const Rows<T>& to) {
  for (int64_t row = 0; row < std::min(count, shape.seq - begin); ++row) {
    for (int64_t i = 0; i < shape.size; i += kLanes) {
      Floats x{};
      vec::load(from + row * shape.padded + i, kLanes, x);
      vec::store(to.data + (begin + row) * to.stride + i, shape.size - i, x * scale);
    }
  }
}

// x [B, heads, S, K] -> the rows of one head.
template <typename T>
Rows<const T> rows_of(const at::Tensor& x, int64_t b, int64_t h) {
  return {x.const_data_ptr<T>() + b * x.stride(0) + h * x.stride(1), x.stride(2)};
}
template <typename T>
Rows<T> mutable_rows_of(const at::Tensor& x, int64_t b, int64_t h) {
  return {x.data_ptr<T>() + b * x.stride(0) + h * x.stride(1), x.stride(2)};
}

template <typename Body>
void of_dtype(const at::Tensor& x, const Body& body) {
  LOCKSTEP_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "attention in ", x.dtype());
  if (x.scalar_type() == at::kFloat)
    body(float{});
  else
    body(c10::BFloat16{});
}

inline HeadShape shape_of(const AttentionOperands& o) {
  LOCKSTEP_CHECK(o.q.stride(3) == 1 && o.k.stride(3) == 1 && o.v.stride(3) == 1, "rows of a head are not contiguous");
  const int64_t size = o.q.size(3), value = o.v.size(3);
  return {.seq = o.q.size(2),
          .size = size,
          .padded = round_up(std::max(size, value), kLanes),
          .value = value,
          .scale = o.scale > 0 ? static_cast<float>(o.scale) : 1.0f / std::sqrt(static_cast<float>(size))};
}

inline at::Tensor workspace_for(int64_t elements) { return at::empty({elements}, at::kFloat); }

}  // namespace lockstep::nn::blocks

#pragma GCC diagnostic pop
