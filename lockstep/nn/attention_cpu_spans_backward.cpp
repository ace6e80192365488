#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "lockstep/nn/attention_cpu_spans.h"
#include "lockstep/nn/attention_span_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using namespace blocks;

// Where a gradient goes, one of the two: written in the dtype of its operand, or added to in fp32.
template <typename T>
struct GradientRows {
  Rows<T> written;
  Rows<float> added;
};
template <typename T>
GradientRows<T> moved(const GradientRows<T>& rows, int64_t elements) {
  return {blocks::moved(rows.written, elements), blocks::moved(rows.added, elements)};
}

// Query heads that share keys and values.
template <typename T>
struct BackwardGroup {
  SpanShapes shapes;
  const SpanTable& table;
  int64_t heads;
  Rows<const T> q, k, v, dout;
  Rows<const T> out;         // one of the two: in the dtype of q,
  Rows<const float> merged;  // or merged in fp32
  int64_t q_head, out_head, dout_head;  // distance from one head to the next
  const float* logsumexp;    // [heads, Sq]
  GradientRows<T> dq, dk, dv;
  int64_t dq_head;
  float* workspace;  // backward_workspace elements, aligned to 64 bytes
};

struct BackwardSpace {
  BackwardSpace(float* memory, const SpanShapes& shapes) {
    const int64_t rows = round_up(shapes.keys.seq, kBlock) * shapes.keys.padded, block = kBlock * shapes.keys.padded;
    keys = memory;
    values = keys + rows;
    dkeys = values + rows;
    dvalues = dkeys + rows;
    queries = dvalues + rows;
    queries_t = queries + block;
    douts = queries_t + block;
    douts_t = douts + block;
    dqueries = douts_t + block;
    weights = dqueries + block;
    gradients = weights + kBlock * kBlock;
  }
  float *keys, *values, *dkeys, *dvalues;
  float *queries, *queries_t, *douts, *douts_t, *dqueries, *weights, *gradients;
};
int64_t backward_workspace(const SpanShapes& shapes) {
  return (4 * round_up(shapes.keys.seq, kBlock) + 5 * kBlock) * shapes.keys.padded + 2 * kBlock * kBlock;
}

// Of a block of queries.
struct QueryRows {
  alignas(64) float logsumexp[kBlock];
  alignas(64) float along_out[kBlock];  // sum(dout * out)
};

template <typename T>
LOCKSTEP_INLINE void add_rows(const float* from, const HeadShape& shape, int64_t begin, float scale, const Rows<T>& to) {
  for (int64_t row = 0; row < std::min(kBlock, shape.seq - begin); ++row) {
    T* const into = to.data + (begin + row) * to.stride;
    for (int64_t i = 0; i < shape.size; i += kLanes) {
      Floats x{}, sum{};
      vec::load(from + row * shape.padded + i, kLanes, x);
      vec::load(into + i, shape.size - i, sum);
      vec::store(into + i, shape.size - i, sum + x * scale);
    }
  }
}
template <typename T>
LOCKSTEP_INLINE void put_rows(const float* from, const HeadShape& shape, int64_t begin, float scale, const GradientRows<T>& to) {
  if (to.added.data)
    add_rows(from, shape, begin, scale, to.added);
  else
    unpack(from, shape, begin, kBlock, scale, to.written);
}

// From scores to weights, and from the weights' gradients to those of the scores: ds = w (dw - sum(dout * out)). Zero where a query does
// not see the key.
LOCKSTEP_INLINE void scores_backward(float* weights, float* gradients, const QuerySpans& spans, int64_t from, const QueryRows& queries) {
  for (int64_t lane = 0; lane < kBlock; lane += kLanes) {
    const SeenRows rows = rows_of_lanes(spans, lane, from, kBlock);
    Floats shift{}, along{};
    vec::load(queries.logsumexp + lane, kLanes, shift);
    vec::load(queries.along_out + lane, kLanes, along);
    for (float* scores : {weights, gradients}) {
      clear_rows(scores, lane, 0, rows.begin);
      clear_rows(scores, lane, rows.end, kBlock);
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      Floats x{}, d{};
      vec::load(weights + row * kBlock + lane, kLanes, x);
      vec::load(gradients + row * kBlock + lane, kLanes, d);
      Floats weight = vec::exp(x - shift);
      d = weight * (d - along);
      if (!rows.whole(row)) {
        const vec::Ints seen = sees(spans, lane, from + row);
        weight = seen ? weight : Floats{};
        d = seen ? d : Floats{};
      }
      vec::store(weights + row * kBlock + lane, kLanes, weight);
      vec::store(gradients + row * kBlock + lane, kLanes, d);
    }
  }
}

// Packs what belongs to the queries from `begin` on.
template <typename T>
LOCKSTEP_INLINE void load_queries(const BackwardGroup<T>& group, int64_t head, int64_t begin, const BackwardSpace& space, QueryRows& rows) {
  const HeadShape &s = group.shapes.queries, &outs = group.shapes.outs;
  pack(moved(group.dout, head * group.dout_head), outs, begin, kBlock, 1.0f, space.douts);
  transpose_block(space.douts, s.padded, space.douts_t);
  float* const out = space.dqueries;  // until the gradients begin
  if (group.merged.data)
    pack(moved(group.merged, head * group.out_head), outs, begin, kBlock, 1.0f, out);
  else
    pack(moved(group.out, head * group.out_head), outs, begin, kBlock, 1.0f, out);
  for (int64_t row = 0; row < kBlock; ++row) {
    Floats sum{};
    for (int64_t i = 0; i < s.padded; i += kLanes) {
      Floats x{}, y{};
      vec::load(space.douts + row * s.padded + i, kLanes, x);
      vec::load(out + row * s.padded + i, kLanes, y);
      sum += x * y;
    }
    rows.along_out[row] = vec::sum(sum);
    const float logsumexp = begin + row < s.seq ? group.logsumexp[head * s.seq + begin + row] : 0.0f;
    rows.logsumexp[row] = logsumexp == -std::numeric_limits<float>::infinity() ? 0.0f : logsumexp;  // of no key: all is masked
  }
  pack(moved(group.q, head * group.q_head), s, begin, kBlock, s.scale, space.queries);
  transpose_block(space.queries, s.padded, space.queries_t);
}

// What the keys from `key` on and the queries in `space` give each other.
LOCKSTEP_INLINE void pass_block(const SpanShapes& shapes, const QuerySpans& spans, int64_t key, const BackwardSpace& space,
                                const QueryRows& rows) {
  const int64_t padded = shapes.keys.padded, offset = key * padded;
  seen_scores(space.keys + offset, space.queries_t, shapes.keys, spans, key, space.weights);
  seen_scores(space.values + offset, space.douts_t, shapes.values, spans, key, space.gradients);
  scores_backward(space.weights, space.gradients, spans, key, rows);
  const auto their_queries = [&](int64_t first, int64_t last) LOCKSTEP_INLINE_LAMBDA {
    return queries_of(spans, key + first, last - first);
  };
  const auto their_keys = [&](int64_t first, int64_t last) LOCKSTEP_INLINE_LAMBDA {
    return keys_of(spans, first, last, key, kBlock);
  };
  tile::add({space.weights, kBlock, 1}, space.douts, space.dvalues + offset, kBlock, padded, their_queries);
  tile::add({space.gradients, kBlock, 1}, space.queries, space.dkeys + offset, kBlock, padded, their_queries);
  tile::add({space.gradients, 1, kBlock}, space.keys + offset, space.dqueries, kBlock, padded, their_keys);
}

// Whether the gradients of a block of keys are put: where they are added to, not of those that no query sees.
template <typename T>
bool puts_block(const BackwardGroup<T>& group, int64_t block) {
  return !group.dk.added.data || group.table.seen[static_cast<size_t>(block)];
}

template <typename T>
LOCKSTEP_INLINE void backward_group(const BackwardGroup<T>& group) {
  const SpanShapes& shapes = group.shapes;
  const int64_t block = kBlock * shapes.keys.padded;
  const BackwardSpace space(group.workspace, shapes);
  pack_seen(group.k, shapes.keys, group.table, space.keys);
  pack_seen(group.v, shapes.values, group.table, space.values);
  for (int64_t i = 0; i < static_cast<int64_t>(group.table.seen.size()); ++i) {
    if (!puts_block(group, i)) continue;
    std::fill_n(space.dkeys + i * block, block, 0.0f);
    std::fill_n(space.dvalues + i * block, block, 0.0f);
  }
  QueryRows queries{};
  for (int64_t head = 0; head < group.heads; ++head) {
    const GradientRows<T> dq = moved(group.dq, head * group.dq_head);
    for (int64_t begin = 0; begin < shapes.queries.seq; begin += kBlock) {
      const QuerySpans spans{group.table.first.data() + begin, group.table.last.data() + begin};
      SeenBlocks seen(spans);
      int64_t key = seen.next(0);
      if (key == SeenBlocks::kNone && dq.added.data) continue;
      load_queries(group, head, begin, space, queries);
      std::fill_n(space.dqueries, block, 0.0f);
      for (; key != SeenBlocks::kNone; key = seen.next(key + kBlock)) pass_block(shapes, spans, key, space, queries);
      put_rows(space.dqueries, shapes.queries, begin, shapes.queries.scale, dq);
    }
  }
  for (int64_t i = 0; i < static_cast<int64_t>(group.table.seen.size()); ++i) {
    if (!puts_block(group, i)) continue;
    put_rows(space.dkeys + i * block, shapes.keys, i * kBlock, 1.0f, group.dk);
    put_rows(space.dvalues + i * block, shapes.values, i * kBlock, 1.0f, group.dv);
  }
}

LOCKSTEP_CLONES void backward_of(const BackwardGroup<float>& group) { backward_group(group); }
LOCKSTEP_CLONES void backward_of(const BackwardGroup<c10::BFloat16>& group) { backward_group(group); }

// By head, [B, heads, S, width].
struct Gradients {
  at::Tensor dq, dk, dv;
  bool added = false;  // to fp32; else written in the dtype of q
};

template <typename T>
GradientRows<T> gradient_of(const at::Tensor& x, bool added, int64_t b, int64_t h) {
  if (added) return {.written = {nullptr, 0}, .added = mutable_rows_of<float>(x, b, h)};
  return {.written = mutable_rows_of<T>(x, b, h), .added = {nullptr, 0}};
}

// out and dout [B, H, Sq, V].
struct Outputs {
  at::Tensor out, logsumexp, dout;
};

void backward(const AttentionRectangle& r, const Outputs& made, const Gradients& gradients) {
  const std::vector<SpanTable> tables = tables_of(r);
  const SpanShapes shapes = shapes_of(r);
  const int64_t heads = r.q.size(1), kv_heads = r.k.size(1), group = heads / kv_heads;
  const bool merged = made.out.scalar_type() == at::kFloat;
  of_dtype(r.q, [&]<typename T>(T) {
    at::parallel_for(0, r.q.size(0) * kv_heads, 1, [&](int64_t begin, int64_t end) {
      const at::Tensor workspace = workspace_for(backward_workspace(shapes));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / kv_heads, kv = i % kv_heads, h = kv * group;
        backward_of(BackwardGroup<T>{
            .shapes = shapes,
            .table = tables[static_cast<size_t>(b)],
            .heads = group,
            .q = rows_of<T>(r.q, b, h),
            .k = rows_of<T>(r.k, b, kv),
            .v = rows_of<T>(r.v, b, kv),
            .dout = rows_of<T>(made.dout, b, h),
            .out = merged ? Rows<const T>{nullptr, 0} : rows_of<T>(made.out, b, h),
            .merged = merged ? rows_of<float>(made.out, b, h) : Rows<const float>{nullptr, 0},
            .q_head = r.q.stride(1),
            .out_head = made.out.stride(1),
            .dout_head = made.dout.stride(1),
            .logsumexp = made.logsumexp.const_data_ptr<float>() + (b * heads + h) * shapes.queries.seq,
            .dq = gradient_of<T>(gradients.dq, gradients.added, b, h),
            .dk = gradient_of<T>(gradients.dk, gradients.added, b, kv),
            .dv = gradient_of<T>(gradients.dv, gradients.added, b, kv),
            .dq_head = gradients.dq.stride(1),
            .workspace = workspace.data_ptr<float>()});
      }
    });
  });
}

}  // namespace

void attend_backward_cpu(const at::Tensor& dout, const SeenSums& seen, const AttentionRectangle& r, const AttentionGradients& gradients) {
  backward(r, {.out = seen.out.transpose(1, 2), .logsumexp = seen.logsumexp, .dout = dout.transpose(1, 2)},
           {.dq = gradients.dq.transpose(1, 2), .dk = gradients.dk.transpose(1, 2), .dv = gradients.dv.transpose(1, 2), .added = true});
}

void attend_alone_backward_cpu(const at::Tensor& dout, const AttentionResult& result, const AttentionRectangle& r,
                               const AttentionOperands& grads) {
  backward(r, {.out = result.out.transpose(1, 2), .logsumexp = result.logsumexp, .dout = dout.transpose(1, 2)},
           {.dq = grads.q, .dk = grads.k, .dv = grads.v, .added = false});
}

}  // namespace lockstep::nn
