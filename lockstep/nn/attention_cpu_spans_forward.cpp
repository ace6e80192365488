#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/nn/attention_cpu_spans.h"
#include "lockstep/nn/attention_span_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using namespace blocks;

constexpr int64_t kKeys = 2 * kBlock;  // of one round of the running softmax
constexpr float kMasked = -1e30f;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();  // logsumexp of no scores

// One block of queries while the keys pass by.
struct Running {
  alignas(64) float most[kBlock];
  alignas(64) float total[kBlock];
  alignas(64) float scale[kBlock];
};

// Query heads that share keys and values.
template <typename T>
struct ForwardGroup {
  SpanShapes shapes;
  const SpanTable& table;
  int64_t heads;
  Rows<const T> q, k, v;
  int64_t q_head;  // distance from one head to the next
  // One of the two: the output, or what it is merged into.
  Rows<T> out;
  Rows<float> seen;
  int64_t out_head;
  float* logsumexp;  // [heads, Sq]
  float* workspace;  // forward_workspace elements, aligned to 64 bytes
};

struct ForwardSpace {
  ForwardSpace(float* memory, const SpanShapes& shapes) {
    const int64_t rows = round_up(shapes.keys.seq, kBlock) * shapes.keys.padded, block = kBlock * shapes.keys.padded;
    keys = memory;
    values = keys + rows;
    packed = values + rows;
    queries = packed + block;
    sums = queries + block;
    scores = sums + block;
  }
  float *keys, *values, *packed, *queries, *sums, *scores;
};
int64_t forward_workspace(const SpanShapes& shapes) {
  return (2 * round_up(shapes.keys.seq, kBlock) + 3 * kBlock) * shapes.keys.padded + kKeys * kBlock;
}

// Turns the scores of keys from .. from + count into weights e^(score - most), zero where a query does not see the key, and updates most,
// total and the scale that what was summed before must take.
LOCKSTEP_INLINE void softmax_round(float* scores, const QuerySpans& spans, int64_t from, int64_t count, Running& state) {
  for (int64_t lane = 0; lane < kBlock; lane += kLanes) {
    const SeenRows rows = rows_of_lanes(spans, lane, from, count);
    Floats before{}, total{};
    vec::load(state.most + lane, kLanes, before);
    vec::load(state.total + lane, kLanes, total);
    Floats most = before;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      Floats x{};
      vec::load(scores + row * kBlock + lane, kLanes, x);
      if (!rows.whole(row)) {
        x = sees(spans, lane, from + row) ? x : vec::splat(kMasked);
        vec::store(scores + row * kBlock + lane, kLanes, x);
      }
      most = x > most ? x : most;
    }
    const Floats scale = vec::exp(before - most);
    total *= scale;
    clear_rows(scores, lane, 0, rows.begin);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      Floats x{};
      vec::load(scores + row * kBlock + lane, kLanes, x);
      Floats weight = vec::exp(x - most);
      if (!rows.whole(row)) weight = x == kMasked ? Floats{} : weight;
      total += weight;
      vec::store(scores + row * kBlock + lane, kLanes, weight);
    }
    clear_rows(scores, lane, rows.end, count);
    vec::store(state.most + lane, kLanes, most);
    vec::store(state.total + lane, kLanes, total);
    vec::store(state.scale + lane, kLanes, scale);
  }
}

// What these keys give joined to what is there: out = keep * out + scale * sums.
struct Merge {
  float logsumexp, keep, scale;
};
LOCKSTEP_INLINE Merge merge_of(float before, float most, float total) {
  const float here = most + std::log(total);
  if (before == kEmpty) return {.logsumexp = here, .keep = 0.0f, .scale = 1.0f / total};
  const float larger = std::max(before, here), old_share = std::exp(before - larger), share = std::exp(here - larger);
  const float sum = old_share + share;
  return {.logsumexp = larger + std::log(sum), .keep = old_share / sum, .scale = share / sum / total};
}

template <typename Out>
LOCKSTEP_INLINE void put_row(const float* sums, const Merge& merge, int64_t width, Out* to) {
  for (int64_t i = 0; i < width; i += kLanes) {
    Floats x{}, old{};
    vec::load(sums + i, kLanes, x);
    x *= merge.scale;
    if (merge.keep != 0.0f) {
      vec::load(to + i, width - i, old);
      x += old * merge.keep;
    }
    vec::store(to + i, width - i, x);
  }
}

// The queries from `begin` on have met all their keys.
template <typename T>
LOCKSTEP_INLINE void put_block(const ForwardGroup<T>& group, int64_t head, int64_t begin, const Running& state, const float* sums) {
  const HeadShape& s = group.shapes.outs;
  const Rows<T> out = moved(group.out, head * group.out_head);
  const Rows<float> seen = moved(group.seen, head * group.out_head);
  float* const logsumexp = group.logsumexp + head * s.seq;
  for (int64_t row = 0; row < std::min(kBlock, s.seq - begin); ++row) {
    const int64_t query = begin + row;
    const float total = state.total[row];
    const float before = seen.data ? logsumexp[query] : kEmpty;
    const bool none = total == 0.0f;  // it saw no key, else it is at least 1
    if (none && seen.data) continue;
    const Merge merge = none ? Merge{.logsumexp = kEmpty, .keep = 0.0f, .scale = 0.0f} : merge_of(before, state.most[row], total);
    logsumexp[query] = merge.logsumexp;
    if (seen.data)
      put_row(sums + row * s.padded, merge, s.size, seen.data + query * seen.stride);
    else
      put_row(sums + row * s.padded, merge, s.size, out.data + query * out.stride);
  }
}

// Weighted sums of values for the 48 queries in space.queries, over all keys that they see.
LOCKSTEP_INLINE void pass_keys(const SpanShapes& shapes, const QuerySpans& spans, const ForwardSpace& space, Running& state) {
  const int64_t padded = shapes.keys.padded;
  SeenBlocks seen(spans);
  bool first_round = true;
  for (int64_t key = seen.next(0); key != SeenBlocks::kNone; first_round = false) {
    int64_t count = kBlock, after = seen.next(key + count);
    if (after == key + count) {  // neighbours in one round
      count = kKeys;
      after = seen.next(key + count);
    }
    for (int64_t row = 0; row < count; row += kBlock)
      seen_scores(space.keys + (key + row) * padded, space.queries, shapes.keys, spans, key + row, space.scores + row * kBlock);
    softmax_round(space.scores, spans, key, count, state);
    if (!first_round)
      for (int64_t row = 0; row < kBlock; ++row)
        for (int64_t i = 0; i < padded; ++i) space.sums[row * padded + i] *= state.scale[row];
    tile::add({space.scores, 1, kBlock}, space.values + key * padded, space.sums, kBlock, padded,
              [&](int64_t begin, int64_t end) LOCKSTEP_INLINE_LAMBDA { return keys_of(spans, begin, end, key, count); });
    key = after;
  }
}

template <typename T>
LOCKSTEP_INLINE void forward_group(const ForwardGroup<T>& group) {
  const SpanShapes& shapes = group.shapes;
  const ForwardSpace space(group.workspace, shapes);
  pack_seen(group.k, shapes.keys, group.table, space.keys);
  pack_seen(group.v, shapes.values, group.table, space.values);
  Running state{};
  for (int64_t head = 0; head < group.heads; ++head) {
    for (int64_t begin = 0; begin < shapes.queries.seq; begin += kBlock) {
      const QuerySpans spans{group.table.first.data() + begin, group.table.last.data() + begin};
      const bool sees_any = SeenBlocks(spans).next(0) != SeenBlocks::kNone;
      if (!sees_any && group.seen.data) continue;
      std::fill_n(space.sums, kBlock * shapes.keys.padded, 0.0f);
      std::fill_n(state.most, kBlock, kMasked);
      std::fill_n(state.total, kBlock, 0.0f);
      if (sees_any) {
        pack(moved(group.q, head * group.q_head), shapes.queries, begin, kBlock, shapes.queries.scale, space.packed);
        transpose_block(space.packed, shapes.queries.padded, space.queries);
        pass_keys(shapes, spans, space, state);
      }
      put_block(group, head, begin, state, space.sums);
    }
  }
}

LOCKSTEP_CLONES void forward_of(const ForwardGroup<float>& group) { forward_group(group); }
LOCKSTEP_CLONES void forward_of(const ForwardGroup<c10::BFloat16>& group) { forward_group(group); }

// out [B, H, Sq, V] in the dtype of q is written; else `seen` [B, H, Sq, V] fp32 merged into.
struct Target {
  at::Tensor out, seen, logsumexp;
};

void forward(const AttentionRectangle& r, const Target& target) {
  const std::vector<SpanTable> tables = tables_of(r);
  const SpanShapes shapes = shapes_of(r);
  const int64_t heads = r.q.size(1), group = heads / r.k.size(1);
  of_dtype(r.q, [&]<typename T>(T) {
    at::parallel_for(0, r.q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      const at::Tensor workspace = workspace_for(forward_workspace(shapes));
      for (int64_t i = begin, count = 0; i < end; i += count) {
        const int64_t b = i / heads, h = i % heads, kv = h / group;
        count = std::min(end - i, (kv + 1) * group - h);
        forward_of(ForwardGroup<T>{
            .shapes = shapes,
            .table = tables[static_cast<size_t>(b)],
            .heads = count,
            .q = rows_of<T>(r.q, b, h),
            .k = rows_of<T>(r.k, b, kv),
            .v = rows_of<T>(r.v, b, kv),
            .q_head = r.q.stride(1),
            .out = target.out.defined() ? mutable_rows_of<T>(target.out, b, h) : Rows<T>{nullptr, 0},
            .seen = target.seen.defined() ? mutable_rows_of<float>(target.seen, b, h) : Rows<float>{nullptr, 0},
            .out_head = target.out.defined() ? target.out.stride(1) : target.seen.stride(1),
            .logsumexp = target.logsumexp.data_ptr<float>() + i * shapes.queries.seq,
            .workspace = workspace.data_ptr<float>()});
      }
    });
  });
}

}  // namespace

AttentionResult attend_alone_cpu(const AttentionRectangle& r) {
  const int64_t batch = r.q.size(0), heads = r.q.size(1), queries = r.q.size(2);
  AttentionResult result{.out = at::empty({batch, queries, heads, r.v.size(3)}, r.q.options()),
                         .logsumexp = at::empty({batch, heads, queries}, at::kFloat)};
  forward(r, {.out = result.out.transpose(1, 2), .seen = {}, .logsumexp = result.logsumexp});
  return result;
}

void attend_cpu(const AttentionRectangle& r, const SeenSums& seen) {
  forward(r, {.out = {}, .seen = seen.out.transpose(1, 2), .logsumexp = seen.logsumexp});
}

}  // namespace lockstep::nn
