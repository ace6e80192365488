// Attention over spans of keys against masked softmax written out for autograd in fp64.
#include "lockstep/nn/attention_spans.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/attention_core.h"
#include "lockstep/nn/attention_cpu_spans.h"
#include "lockstep/nn/attention_span_blocks.h"
#include "lockstep/nn/attention_spans_device.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

std::vector<int32_t> range(int32_t begin, int32_t end) {
  std::vector<int32_t> places;
  for (int32_t i = begin; i < end; ++i) places.push_back(i);
  return places;
}

// Places of the queries and the keys of a sequence, both ascending; where its documents begin; tokens that a query sees at most, or 0.
struct Sequence {
  std::vector<int32_t> queries{}, keys{};
  std::vector<int32_t> documents = {0};
  int32_t window = 0;
};
Sequence triangle(int32_t length) { return {.queries = range(0, length), .keys = range(0, length)}; }
Sequence triangle(int32_t length, std::vector<int32_t> documents, int32_t window = 0) {
  return {.queries = range(0, length), .keys = range(0, length), .documents = std::move(documents), .window = window};
}

// A query sees the keys of its document up to its own place.
KeySpans spans_for(const std::vector<Sequence>& sequences) {
  const auto batch = static_cast<int64_t>(sequences.size()), length = static_cast<int64_t>(sequences[0].queries.size());
  const KeySpans spans{.first = at::empty({batch, length}, at::kInt), .last = at::empty({batch, length}, at::kInt)};
  auto *first = spans.first.data_ptr<int32_t>(), *last = spans.last.data_ptr<int32_t>();
  for (const Sequence& s : sequences) {
    for (const int32_t place : s.queries) {
      int32_t begin = 0;
      for (const int32_t document : s.documents) begin = document <= place ? document : begin;
      if (s.window > 0) begin = std::max(begin, place - s.window + 1);
      *first++ = static_cast<int32_t>(std::ranges::count_if(s.keys, [&](int32_t key) { return key < begin; }));
      *last++ = static_cast<int32_t>(std::ranges::count_if(s.keys, [&](int32_t key) { return key <= place; }));
    }
  }
  return spans;
}

struct Case {
  std::string name;
  std::vector<Sequence> sequences;
  int64_t heads = 2, kv_heads = 2, key = 16, value = 16;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

std::vector<Case> cases() {
  const std::vector<int32_t> documents = {0, 1, 3, 48, 96, 97, 150};
  std::vector<Case> all;
  for (const int32_t length : {1, 47, 49, 97, 200}) all.push_back({.name = cat("causal ", length), .sequences = {triangle(length)}});
  for (const int32_t window : {1, 7, 48, 100}) all.push_back({.name = cat("window ", window), .sequences = {triangle(200, {0}, window)}});
  all.push_back({.name = "documents", .sequences = {triangle(200, documents), triangle(200, {0, 199})}, .heads = 4});
  all.push_back({.name = "documents and a window", .sequences = {triangle(200, documents, 30)}});
  all.push_back({.name = "every token a document", .sequences = {triangle(101, range(0, 101))}});
  all.push_back({.name = "keys before", .sequences = {{.queries = range(100, 197), .keys = range(0, 150)}}});
  all.push_back({.name = "keys behind", .sequences = {{.queries = range(0, 61), .keys = range(40, 200)}}});
  // Keys that lie between two documents of the queries and that none of them sees.
  Sequence gap{.queries = range(0, 10), .keys = range(0, 300), .documents = {0, 10, 250}};
  for (int32_t i = 250; i < 300; ++i) gap.queries.push_back(i);
  all.push_back({.name = "a gap", .sequences = {gap}});
  all.push_back({.name = "grouped heads, narrow values", .sequences = {triangle(130, documents), triangle(130)}, .heads = 6, .key = 24});
  all.push_back({.name = "one key head, wide values",
                 .sequences = {{.queries = range(30, 120), .keys = range(0, 70), .window = 90}},
                 .heads = 3,
                 .kv_heads = 1,
                 .key = 5,
                 .value = 70});
  all.push_back({.name = "bf16", .sequences = {triangle(130, documents)}, .heads = 4, .key = 32, .dtype = at::kBFloat16, .bound = 0.03});
  all.push_back({.name = "bf16, keys behind",
                 .sequences = {{.queries = range(0, 61), .keys = range(40, 200)}},
                 .value = 24,
                 .dtype = at::kBFloat16,
                 .bound = 0.03});
  return all;
}

// In the order of the tokens.
struct Problem {
  explicit Problem(const Case& c) : spans(spans_for(c.sequences)) {
    const auto batch = static_cast<int64_t>(c.sequences.size()), queries = static_cast<int64_t>(c.sequences[0].queries.size()),
               keys = static_cast<int64_t>(c.sequences[0].keys.size());
    q = random("q", {batch, queries, c.heads, c.key}, 2).to(c.dtype);
    k = random("k", {batch, keys, c.kv_heads, c.key}).to(c.dtype);
    v = random("v", {batch, keys, c.kv_heads, c.value}).to(c.dtype);
    dout = random("dout", {batch, queries, c.heads, c.value}).to(c.dtype);
  }
  AttentionRectangle rectangle() const {
    return {.q = q.transpose(1, 2), .k = k.transpose(1, 2), .v = v.transpose(1, 2), .spans = spans, .scale = scale};
  }
  AttentionGradients gradients() const {
    return {.dq = at::zeros(q.sizes(), at::kFloat), .dk = at::zeros(k.sizes(), at::kFloat), .dv = at::zeros(v.sizes(), at::kFloat)};
  }
  at::Tensor q, k, v, dout;
  KeySpans spans;
  double scale = 0;
};

struct Expected {
  at::Tensor out, logsumexp, dq, dk, dv, dsinks;
};

// `sinks` [H]: one more key of that score and no value; undefined: none.
Expected expected_of(const Problem& p, const at::Tensor& sinks = {}) {
  const auto follow = [](const at::Tensor& x) { return x.to(at::kDouble).detach().clone().requires_grad_(true); };
  const at::Tensor q = follow(p.q), k = follow(p.k), v = follow(p.v);
  const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), keys = k.size(1), group = heads / k.size(2);
  const double scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor key = at::arange(keys, at::kInt);
  const at::Tensor seen = key.ge(p.spans.first.unsqueeze(-1)).logical_and(key.lt(p.spans.last.unsqueeze(-1))).unsqueeze(1);
  at::Tensor scores = at::matmul(q.transpose(1, 2), k.repeat_interleave(group, 2).permute({0, 2, 3, 1})) * scale;
  scores = scores.masked_fill(seen.logical_not(), -1e30);
  const at::Tensor sink = sinks.defined() ? follow(sinks) : at::Tensor();
  if (sinks.defined()) scores = at::cat({scores, sink.view({1, heads, 1, 1}).expand({batch, heads, queries, 1})}, -1);
  const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, keys) * seen;
  const at::Tensor out = at::matmul(weights, v.repeat_interleave(group, 2).transpose(1, 2)).transpose(1, 2);
  out.backward(p.dout.to(at::kDouble));
  const at::Tensor known = scores.detach().masked_fill(scores.detach().eq(-1e30), -std::numeric_limits<double>::infinity());
  return {.out = out.detach(),
          .logsumexp = at::logsumexp(known, -1),
          .dq = q.grad(),
          .dk = k.grad(),
          .dv = v.grad(),
          .dsinks = sinks.defined() ? sink.grad() : at::Tensor()};
}

void expect_sums(const SeenSums& seen, const Expected& expected, double bound) {
  expect_close(seen.out, expected.out, "out", bound);
  EXPECT_TRUE(at::equal(seen.logsumexp.isneginf(), expected.logsumexp.isneginf()));
  const auto finite = [](const at::Tensor& x) { return x.masked_fill(x.isneginf(), 0); };
  expect_close(finite(seen.logsumexp), finite(expected.logsumexp), "logsumexp", bound);
}

void expect_gradients(const AttentionGradients& found, const Expected& expected, double bound) {
  // One key alone has the weight 1 whatever its score is: gradients of q and k are zero but for rounding.
  const auto close = [&](const at::Tensor& x, const at::Tensor& y, const char* what) {
    if (y.abs().max().item<double>() > 1e-9)
      expect_close(x, y, what, bound);
    else
      EXPECT_LE(x.abs().max().item<double>(), bound) << what;
  };
  close(found.dq, expected.dq, "dq");
  close(found.dk, expected.dk, "dk");
  close(found.dv, expected.dv, "dv");
}

TEST(AttentionSpans, MatchesAutograd) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Problem p(c);
    if (c.heads == 6) p.scale = 0.1;
    const Expected expected = expected_of(p);
    SeenSums seen = nothing_seen(p.q.transpose(1, 2), c.value);
    attend(p.rectangle(), seen);
    expect_sums(seen, expected, c.bound);
    const AttentionGradients gradients = p.gradients();
    attend_backward(p.dout, seen, p.rectangle(), gradients);
    expect_gradients(gradients, expected, c.bound);
    // The output as the next layer takes it.
    const AttentionGradients again = p.gradients();
    attend_backward(p.dout, {.out = seen.out.to(c.dtype), .logsumexp = seen.logsumexp}, p.rectangle(), again);
    expect_gradients(again, expected, c.bound);
  }
}

// One rank alone: output in the dtype of q, gradients in the place of q, k and v.
TEST(AttentionSpans, CoreMatchesAutograd) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem p(c);
    const Expected expected = expected_of(p);
    const AttentionRectangle r = p.rectangle();
    AttentionCoreSaved saved;
    const at::Tensor out = attention_core_forward(r.q, r.k, r.v, p.spans, &saved);
    EXPECT_EQ(out.scalar_type(), c.dtype);
    EXPECT_TRUE(out.is_contiguous());
    EXPECT_TRUE(saved.out.is_alias_of(out));
    expect_close(out, expected.out.reshape(out.sizes()), "out", c.bound);
    EXPECT_TRUE(at::equal(out, attention_core_forward(r.q, r.k, r.v, p.spans, nullptr)));
    attention_core_backward(p.dout.view(out.sizes()), saved, {.dq = p.q, .dk = p.k, .dv = p.v});
    EXPECT_FALSE(saved.q.defined());
    expect_gradients({.dq = p.q, .dk = p.k, .dv = p.v}, expected, c.bound);
  }
}

TEST(AttentionSpans, CausalTriangleIsCausalAttention) {
  const Problem p({.name = "causal", .sequences = {triangle(203)}, .heads = 4, .key = 24});
  const AttentionRectangle r = p.rectangle();
  const auto run = [&](bool spans) {
    AttentionCoreSaved saved;
    const at::Tensor out = spans ? attention_core_forward(r.q, r.k, r.v, p.spans, &saved)
                                 : attention_core_forward(r.q, r.k, r.v, /*causal=*/true, &saved);
    const AttentionCoreGrads grads{.dq = at::empty_like(p.q), .dk = at::empty_like(p.k), .dv = at::empty_like(p.v)};
    attention_core_backward(p.dout.view(out.sizes()), saved, grads);
    return std::vector{out, grads.dq, grads.dk, grads.dv};
  };
  const std::vector<at::Tensor> found = run(true), expected = run(false);
  for (size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i], cat("tensor ", i), 3e-6);
}

// Three ranks hold an early and a late piece of each sequence, of 33 tokens each.
std::vector<std::vector<int32_t>> zigzag() {
  std::vector<std::vector<int32_t>> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) {
    std::vector<int32_t> places = range(33 * rank, 33 * (rank + 1));
    for (const int32_t place : range(33 * (5 - rank), 33 * (6 - rank))) places.push_back(place);
    ranks.push_back(places);
  }
  return ranks;
}

// The tokens at `places` of x [B, S, ...].
at::Tensor taken(const at::Tensor& x, const std::vector<int32_t>& places) {
  std::vector<at::Tensor> rows;
  for (const int32_t place : places) rows.push_back(x.select(1, place));
  return at::stack(rows, 1);
}

// `order`: of the ranks whose keys come, counted from the queries' own.
void expect_merged(const Case& c, const std::vector<int>& order) {
  const Problem p(c);
  const Expected expected = expected_of(p);
  const std::vector<std::vector<int32_t>> ranks = zigzag();
  const auto part = [&](size_t queries, size_t keys) {
    Case here = c;
    for (Sequence& s : here.sequences) s.queries = ranks[queries], s.keys = ranks[keys];
    Problem piece(here);
    piece.q = taken(p.q, ranks[queries]), piece.dout = taken(p.dout, ranks[queries]);
    piece.k = taken(p.k, ranks[keys]), piece.v = taken(p.v, ranks[keys]);
    return piece;
  };
  std::vector<at::Tensor> dq(3), dk(3), dv(3);
  for (size_t i = 0; i < 3; ++i) {
    const AttentionGradients empty = part(i, i).gradients();
    dq[i] = empty.dq, dk[i] = empty.dk, dv[i] = empty.dv;
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    SeenSums seen = nothing_seen(part(rank, rank).q.transpose(1, 2), c.value);
    for (const int step : order) attend(part(rank, (rank + static_cast<size_t>(step)) % 3).rectangle(), seen);
    expect_close(seen.out, taken(expected.out, ranks[rank]), cat("out of rank ", rank), c.bound);
    for (const int step : order) {
      const size_t keys = (rank + static_cast<size_t>(step)) % 3;
      const Problem piece = part(rank, keys);
      attend_backward(piece.dout, seen, piece.rectangle(), {.dq = dq[rank], .dk = dk[keys], .dv = dv[keys]});
    }
  }
  for (size_t rank = 0; rank < 3; ++rank)
    expect_gradients({.dq = dq[rank], .dk = dk[rank], .dv = dv[rank]},
                     {.out = {},
                      .logsumexp = {},
                      .dq = taken(expected.dq, ranks[rank]),
                      .dk = taken(expected.dk, ranks[rank]),
                      .dv = taken(expected.dv, ranks[rank]),
                      .dsinks = {}},
                     2 * c.bound);
}

TEST(AttentionSpans, PiecesInAnyOrderAreTheWhole) {
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    SCOPED_TRACE(order[0]);
    expect_merged({.name = "causal", .sequences = {triangle(198)}}, order);
    expect_merged({.name = "documents", .sequences = {triangle(198, {0, 20, 33, 34, 130}), triangle(198)}, .heads = 4}, order);
    expect_merged({.name = "window", .sequences = {triangle(198, {0}, 40)}}, order);
    expect_merged({.name = "bf16", .sequences = {triangle(198)}, .key = 24, .dtype = at::kBFloat16, .bound = 0.03}, order);
  }
}

// Where a query sees none of the keys its sums stay as they are; where it has seen none before they become the block's.
TEST(AttentionSpans, WhatIsEmptyChangesNothing) {
  const Problem p({.name = "keys behind", .sequences = {{.queries = range(0, 100), .keys = range(60, 200)}}});
  SeenSums seen = nothing_seen(p.q.transpose(1, 2), 16);
  EXPECT_EQ(seen.out.abs().max().item<float>(), 0);
  EXPECT_TRUE(seen.logsumexp.isneginf().all().item<bool>());
  attend(p.rectangle(), seen);
  const AttentionResult alone = attend_alone_cpu(p.rectangle());
  EXPECT_TRUE(at::equal(seen.out, alone.out));
  EXPECT_TRUE(at::equal(seen.logsumexp, alone.logsumexp));
  EXPECT_EQ(seen.out.narrow(1, 0, 60).abs().max().item<float>(), 0);
  EXPECT_TRUE(seen.logsumexp.narrow(2, 0, 60).isneginf().all().item<bool>());

  const SeenSums before{.out = seen.out.clone(), .logsumexp = seen.logsumexp.clone()};
  AttentionRectangle unseen = p.rectangle();
  unseen.spans = {.first = at::zeros_like(p.spans.first), .last = at::zeros_like(p.spans.last)};
  attend(unseen, seen);
  EXPECT_TRUE(at::equal(seen.out, before.out));
  EXPECT_TRUE(at::equal(seen.logsumexp, before.logsumexp));
  merge_seen(attend_alone_cpu(unseen), seen);
  EXPECT_TRUE(at::equal(seen.out, before.out));
  EXPECT_TRUE(at::equal(seen.logsumexp, before.logsumexp));

  const AttentionGradients gradients = p.gradients();
  attend_backward(p.dout, seen, unseen, gradients);
  for (const at::Tensor& x : {gradients.dq, gradients.dk, gradients.dv}) EXPECT_EQ(x.abs().max().item<float>(), 0);
  attend_backward(p.dout, seen, p.rectangle(), gradients);
  EXPECT_EQ(gradients.dq.narrow(1, 0, 60).abs().max().item<float>(), 0);
}

// What a GPU merges with.
TEST(AttentionSpans, MergingByOperatorsGivesTheSame) {
  const std::vector<Sequence> late = {{.queries = range(50, 150), .keys = range(80, 150), .documents = {0, 60, 149}}};
  const std::vector<Sequence> early = {{.queries = range(50, 150), .keys = range(0, 80), .documents = {0, 60, 149}}};
  const Problem first({.name = "late keys", .sequences = late}), second({.name = "early keys", .sequences = early});
  SeenSums seen = nothing_seen(first.q.transpose(1, 2), 16), merged = nothing_seen(first.q.transpose(1, 2), 16);
  for (const Problem* p : {&first, &second}) {
    attend(p->rectangle(), seen);
    merge_seen(attend_alone_cpu(p->rectangle()), merged);
  }
  expect_close(merged.out, seen.out, "out", 1e-5);
  expect_close(merged.logsumexp, seen.logsumexp, "logsumexp", 1e-5);
}

TEST(AttentionSpans, SinksMatchAutograd) {
  for (const int32_t window : {0, 20}) {
    SCOPED_TRACE(window);
    // The last queries of the first sequence see no key at all but the sink.
    const Sequence sequence{.queries = range(0, 120), .keys = range(0, 70), .documents = {0, 50, 100}, .window = window};
    const Sequence whole{.queries = sequence.queries, .keys = sequence.keys};
    const Problem p({.name = "sinks", .sequences = {sequence, whole}, .heads = 4});
    const at::Tensor sinks = random("sinks", {4});
    const Expected expected = expected_of(p, sinks);
    SeenSums seen = nothing_seen(p.q.transpose(1, 2), 16);
    attend(p.rectangle(), seen);
    attend_sinks(sinks, seen);
    expect_sums(seen, expected, 1e-5);
    const AttentionGradients gradients = p.gradients();
    attend_backward(p.dout, seen, p.rectangle(), gradients);
    expect_gradients(gradients, expected, 1e-5);
    const at::Tensor dsinks = at::zeros({4}, at::kFloat);
    attend_sinks_backward(p.dout, seen, sinks, dsinks);
    expect_close(dsinks, expected.dsinks, "dsinks", 1e-5);
  }
}

// Blocks that no query sees may hold anything: they are never read.
TEST(AttentionSpans, UnseenBlocksAreNotRead) {
  Problem p({.name = "window", .sequences = {{.queries = range(480, 600), .keys = range(0, 960), .window = 97}}});
  // Queries 480 .. 599 see keys 384 .. 599: of blocks of 48, 8 to 12.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const at::Tensor& x : {p.k, p.v}) {
    x.narrow(1, 0, 384).fill_(nan);
    x.narrow(1, 624, 336).fill_(nan);
  }
  SeenSums seen = nothing_seen(p.q.transpose(1, 2), 16);
  attend(p.rectangle(), seen);
  EXPECT_TRUE(seen.out.isfinite().all().item<bool>());
  const AttentionGradients gradients = p.gradients();
  attend_backward(p.dout, seen, p.rectangle(), gradients);
  for (const at::Tensor& x : {gradients.dq, gradients.dk, gradients.dv}) EXPECT_TRUE(x.isfinite().all().item<bool>());
  EXPECT_EQ(gradients.dk.narrow(1, 0, 384).abs().max().item<float>(), 0);
  EXPECT_EQ(gradients.dv.narrow(1, 624, 336).abs().max().item<float>(), 0);
}

// Pairs of a block of queries and a block of keys that are computed, against a count of pairs of which any is seen.
TEST(AttentionSpans, VisitsTheBlocksThatAreSeen) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem p(c);
    const auto queries = p.q.size(1), keys = p.k.size(1);
    const std::vector<blocks::SpanTable> tables = blocks::tables_of(p.rectangle());
    for (int64_t b = 0; b < p.q.size(0); ++b) {
      const int32_t* const first = p.spans.first.const_data_ptr<int32_t>() + b * queries;
      const int32_t* const last = p.spans.last.const_data_ptr<int32_t>() + b * queries;
      for (int64_t begin = 0; begin < queries; begin += 48) {
        std::vector<int64_t> expected, visited;
        for (int64_t key = 0; key < keys; key += 48) {
          bool any = false;
          for (int64_t i = begin; i < std::min(begin + 48, queries); ++i)
            any = any || std::max<int64_t>(first[i], key) < std::min<int64_t>(last[i], key + 48);
          if (any) expected.push_back(key);
        }
        const blocks::SpanTable& table = tables[static_cast<size_t>(b)];
        blocks::SeenBlocks seen({table.first.data() + begin, table.last.data() + begin});
        for (int64_t key = seen.next(0); key != blocks::SeenBlocks::kNone; key = seen.next(key + 48)) visited.push_back(key);
        EXPECT_EQ(visited, expected) << "queries from " << begin << " of sequence " << b;
        for (const int64_t key : expected) EXPECT_TRUE(table.seen[static_cast<size_t>(key / 48)]);
      }
    }
  }
}

TEST(AttentionSpans, SpansThatAreNoneAreRefused) {
  const Problem p({.name = "causal", .sequences = {triangle(5)}});
  SeenSums seen = nothing_seen(p.q.transpose(1, 2), 16);
  const auto with = [&](int query, int32_t first, int32_t last) {
    AttentionRectangle r = p.rectangle();
    r.spans = {.first = p.spans.first.clone(), .last = p.spans.last.clone()};
    r.spans.first[0][query] = first;
    r.spans.last[0][query] = last;
    return r;
  };
  EXPECT_THROW(attend(with(1, 2, 5), seen), InternalError);  // the next one begins before it
  EXPECT_THROW(attend(with(4, 0, 6), seen), InternalError);  // of 5 keys
  EXPECT_THROW(attend(with(0, -1, 1), seen), InternalError);
  EXPECT_NO_THROW(attend(with(4, 5, 5), seen));
}

}  // namespace
}  // namespace lockstep::nn
