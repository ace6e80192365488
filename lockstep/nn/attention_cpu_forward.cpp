#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "lockstep/nn/attention_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using namespace blocks;

constexpr int64_t kKeys = 2 * kBlock;  // of one round of the running softmax
constexpr float kMasked = -1e30f;

// One block of queries while the keys pass by.
struct Running {
  alignas(64) float most[kBlock];
  alignas(64) float total[kBlock];
  alignas(64) float scale[kBlock];
};

// Turns `count` rows of scores into weights e^(score - most) and updates most, total and the scale that what was summed
// before must take. `diagonal`: the row at which the block on the diagonal begins; count where there is none.
LOCKSTEP_INLINE void softmax_round(float* scores, int64_t count, int64_t diagonal, Running& state) {
  for (int64_t first = 0; first < kBlock; first += kLanes) {
    const int64_t seen = std::min(count, diagonal + first + kLanes);  // rows below are masked for all sixteen
    Floats before{}, total{};
    vec::load(state.most + first, kLanes, before);
    vec::load(state.total + first, kLanes, total);
    Floats most = before;
    for (int64_t row = 0; row < seen; ++row) {
      Floats x{};
      vec::load(scores + row * kBlock + first, kLanes, x);
      if (row >= diagonal) {
        x = visible(row - diagonal, first) ? x : vec::splat(kMasked);
        vec::store(scores + row * kBlock + first, kLanes, x);
      }
      most = x > most ? x : most;
    }
    const Floats scale = vec::exp(before - most);
    total *= scale;
    for (int64_t row = 0; row < seen; ++row) {
      Floats x{};
      vec::load(scores + row * kBlock + first, kLanes, x);
      Floats weight = vec::exp(x - most);
      if (row >= diagonal) weight = x == kMasked ? Floats{} : weight;
      total += weight;
      vec::store(scores + row * kBlock + first, kLanes, weight);
    }
    vec::store(state.most + first, kLanes, most);
    vec::store(state.total + first, kLanes, total);
    vec::store(state.scale + first, kLanes, scale);
  }
}

template <typename T>
struct ForwardHead {
  HeadShape shape;
  Rows<const T> q, k, v;
  Rows<T> out;
  float* logsumexp;
  float* workspace;  // forward_workspace elements, aligned to 64 bytes
};

int64_t forward_workspace(const HeadShape& s) {
  return (2 * round_up(s.seq, kBlock) + 3 * kBlock) * s.padded + kKeys * kBlock;
}

template <typename T>
LOCKSTEP_INLINE void forward_head(const ForwardHead<T>& head) {
  const HeadShape& s = head.shape;
  const HeadShape values_shape = value_rows(s);
  const int64_t rows = round_up(s.seq, kBlock);
  const int64_t block = kBlock * s.padded;
  float* const keys = head.workspace;
  float* const values = keys + rows * s.padded;
  float* const packed = values + rows * s.padded;
  float* const queries = packed + block;
  float* const sums = queries + block;
  float* const scores = sums + block;
  pack(head.k, s, 0, rows, 1.0f, keys);
  pack(head.v, values_shape, 0, rows, 1.0f, values);
  Running state;
  for (int64_t begin = 0; begin < s.seq; begin += kBlock) {
    pack(head.q, s, begin, kBlock, s.scale, packed);
    transpose_block(packed, s.padded, queries);
    std::fill_n(sums, block, 0.0f);
    std::fill_n(state.most, kBlock, kMasked);
    std::fill_n(state.total, kBlock, 0.0f);
    for (int64_t key = 0; key <= begin; key += kKeys) {
      const int64_t count = std::min(kKeys, begin + kBlock - key);
      const int64_t diagonal = std::min(count, begin - key);
      for (int64_t row = 0; row < count; row += kBlock)
        scores_of(keys + (key + row) * s.padded, queries, s, row == diagonal, scores + row * kBlock);
      softmax_round(scores, count, diagonal, state);
      if (key > 0)
        for (int64_t row = 0; row < kBlock; ++row)
          for (int64_t i = 0; i < s.padded; ++i) sums[row * s.padded + i] *= state.scale[row];
      tile::add({scores, 1, kBlock}, values + key * s.padded, sums, kBlock, s.padded,
                [&](int64_t, int64_t last) LOCKSTEP_INLINE_LAMBDA {
                  return std::pair<int64_t, int64_t>(0, std::min(count, diagonal + last));
                });
    }
    for (int64_t row = 0; row < std::min(kBlock, s.seq - begin); ++row) {
      const float total = state.total[row];
      head.logsumexp[begin + row] = state.most[row] + std::log(total);
      for (int64_t i = 0; i < s.value; i += kLanes) {
        Floats x{};
        vec::load(sums + row * s.padded + i, kLanes, x);
        vec::store(head.out.data + (begin + row) * head.out.stride + i, s.value - i, x * (1.0f / total));
      }
    }
  }
}

LOCKSTEP_CLONES void forward_of(const ForwardHead<float>& head) { forward_head(head); }
LOCKSTEP_CLONES void forward_of(const ForwardHead<c10::BFloat16>& head) { forward_head(head); }

}  // namespace

AttentionResult causal_attention_cpu(const AttentionOperands& operands) {
  const HeadShape shape = shape_of(operands);
  const int64_t batch = operands.q.size(0), heads = operands.q.size(1), group = heads / operands.k.size(1);
  AttentionResult result{.out = at::empty({batch, shape.seq, heads, shape.value}, operands.q.options()),
                         .logsumexp = at::empty({batch, heads, shape.seq}, at::kFloat)};
  const at::Tensor out = result.out.transpose(1, 2);
  of_dtype(operands.q, [&]<typename T>(T) {
    at::parallel_for(0, batch * heads, 1, [&](int64_t begin, int64_t end) {
      const at::Tensor workspace = workspace_for(forward_workspace(shape));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / heads, h = i % heads;
        forward_of({.shape = shape,
                    .q = rows_of<T>(operands.q, b, h),
                    .k = rows_of<T>(operands.k, b, h / group),
                    .v = rows_of<T>(operands.v, b, h / group),
                    .out = mutable_rows_of<T>(out, b, h),
                    .logsumexp = result.logsumexp.data_ptr<float>() + i * shape.seq,
                    .workspace = workspace.data_ptr<float>()});
      }
    });
  });
  return result;
}

}  // namespace lockstep::nn
