#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "lockstep/nn/attention_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using namespace blocks;

// The heads of one group: query heads that share keys and values.
template <typename T>
struct BackwardGroup {
  HeadShape shape;
  int64_t heads;      // of the group, side by side
  Rows<const T> q, k, v, out, dout;
  int64_t q_head, out_head;  // distance from one head to the next
  const float* logsumexp;    // [heads, S]
  Rows<T> dq, dk, dv;
  int64_t dq_head;
  float* workspace;  // backward_workspace elements, aligned to 64 bytes
};

int64_t backward_workspace(const HeadShape& s) {
  return (4 * round_up(s.seq, kBlock) + 5 * kBlock) * s.padded + 2 * kBlock * kBlock;
}

// From scores to weights, and from the weights' gradients to those of the scores: ds = w (dw - sum(dout * out)).
LOCKSTEP_INLINE void scores_backward(float* weights, float* gradients, bool diagonal, const float* logsumexp,
                                     const float* along_out) {
  for (int64_t first = 0; first < kBlock; first += kLanes) {
    const int64_t seen = diagonal ? first + kLanes : kBlock;
    Floats shift{}, along{};
    vec::load(logsumexp + first, kLanes, shift);
    vec::load(along_out + first, kLanes, along);
    for (int64_t row = 0; row < seen; ++row) {
      Floats x{}, d{};
      vec::load(weights + row * kBlock + first, kLanes, x);
      vec::load(gradients + row * kBlock + first, kLanes, d);
      Floats weight = vec::exp(x - shift);
      if (diagonal) weight = visible(row, first) ? weight : Floats{};
      vec::store(weights + row * kBlock + first, kLanes, weight);
      vec::store(gradients + row * kBlock + first, kLanes, weight * (d - along));
    }
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_group(const BackwardGroup<T>& group) {
  const HeadShape& s = group.shape;
  const HeadShape values_shape = value_rows(s);
  const int64_t rows = round_up(s.seq, kBlock);
  const int64_t block = kBlock * s.padded;
  float* const keys = group.workspace;
  float* const values = keys + rows * s.padded;
  float* const dkeys = values + rows * s.padded;
  float* const dvalues = dkeys + rows * s.padded;
  float* const queries = dvalues + rows * s.padded;
  float* const queries_t = queries + block;
  float* const douts = queries_t + block;
  float* const douts_t = douts + block;
  float* const dqueries = douts_t + block;
  float* const weights = dqueries + block;
  float* const gradients = weights + kBlock * kBlock;
  pack(group.k, s, 0, rows, 1.0f, keys);
  pack(group.v, values_shape, 0, rows, 1.0f, values);
  std::fill_n(dkeys, 2 * rows * s.padded, 0.0f);
  alignas(64) float logsumexp[kBlock], along_out[kBlock];
  for (int64_t head = 0; head < group.heads; ++head) {
    const Rows<const T> q{group.q.data + head * group.q_head, group.q.stride};
    const Rows<const T> out{group.out.data + head * group.out_head, group.out.stride};
    const Rows<const T> dout{group.dout.data + head * group.out_head, group.dout.stride};
    const Rows<T> dq{group.dq.data + head * group.dq_head, group.dq.stride};
    for (int64_t begin = 0; begin < s.seq; begin += kBlock) {
      const int64_t count = std::min(kBlock, s.seq - begin);
      pack(dout, values_shape, begin, kBlock, 1.0f, douts);
      transpose_block(douts, s.padded, douts_t);
      pack(out, values_shape, begin, kBlock, 1.0f, dqueries);
      for (int64_t row = 0; row < kBlock; ++row) {
        Floats sum{};
        for (int64_t i = 0; i < s.padded; i += kLanes) {
          Floats x{}, y{};
          vec::load(douts + row * s.padded + i, kLanes, x);
          vec::load(dqueries + row * s.padded + i, kLanes, y);
          sum += x * y;
        }
        along_out[row] = vec::sum(sum);
        logsumexp[row] = row < count ? group.logsumexp[head * s.seq + begin + row] : 0.0f;
      }
      pack(q, s, begin, kBlock, s.scale, queries);
      transpose_block(queries, s.padded, queries_t);
      std::fill_n(dqueries, block, 0.0f);
      for (int64_t key = 0; key <= begin; key += kBlock) {
        const bool diagonal = key == begin;
        const int64_t offset = key * s.padded;
        scores_of(keys + offset, queries_t, s, diagonal, weights);
        scores_of(values + offset, douts_t, values_shape, diagonal, gradients);
        scores_backward(weights, gradients, diagonal, logsumexp, along_out);
        const auto later = [&](int64_t first, int64_t) LOCKSTEP_INLINE_LAMBDA {
          return std::pair<int64_t, int64_t>(diagonal ? first : 0, kBlock);
        };
        const auto earlier = [&](int64_t, int64_t last) LOCKSTEP_INLINE_LAMBDA {
          return std::pair<int64_t, int64_t>(0, diagonal ? last : kBlock);
        };
        tile::add({weights, kBlock, 1}, douts, dvalues + offset, kBlock, s.padded, later);
        tile::add({gradients, kBlock, 1}, queries, dkeys + offset, kBlock, s.padded, later);
        tile::add({gradients, 1, kBlock}, keys + offset, dqueries, kBlock, s.padded, earlier);
      }
      unpack(dqueries, s, begin, kBlock, s.scale, dq);
    }
  }
  unpack(dkeys, s, 0, rows, 1.0f, group.dk);
  unpack(dvalues, values_shape, 0, rows, 1.0f, group.dv);
}

LOCKSTEP_CLONES void backward_of(const BackwardGroup<float>& group) { backward_group(group); }
LOCKSTEP_CLONES void backward_of(const BackwardGroup<c10::BFloat16>& group) { backward_group(group); }

}  // namespace

void causal_attention_backward_cpu(const at::Tensor& dout, const AttentionResult& result,
                                   const AttentionOperands& operands, const AttentionOperands& grads) {
  const HeadShape shape = shape_of(operands);
  const int64_t batch = operands.q.size(0), heads = operands.q.size(1), kv_heads = operands.k.size(1);
  const int64_t group = heads / kv_heads;
  const at::Tensor out = result.out.transpose(1, 2), d = dout.transpose(1, 2);
  of_dtype(operands.q, [&]<typename T>(T) {
    at::parallel_for(0, batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
      const at::Tensor workspace = workspace_for(backward_workspace(shape));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / kv_heads, kv = i % kv_heads, h = kv * group;
        backward_of({.shape = shape,
                     .heads = group,
                     .q = rows_of<T>(operands.q, b, h),
                     .k = rows_of<T>(operands.k, b, kv),
                     .v = rows_of<T>(operands.v, b, kv),
                     .out = rows_of<T>(out, b, h),
                     .dout = rows_of<T>(d, b, h),
                     .q_head = operands.q.stride(1),
                     .out_head = out.stride(1),
                     .logsumexp = result.logsumexp.const_data_ptr<float>() + (b * heads + h) * shape.seq,
                     .dq = mutable_rows_of<T>(grads.q, b, h),
                     .dk = mutable_rows_of<T>(grads.k, b, kv),
                     .dv = mutable_rows_of<T>(grads.v, b, kv),
                     .dq_head = grads.q.stride(1),
                     .workspace = workspace.data_ptr<float>()});
      }
    });
  });
}

}  // namespace lockstep::nn
