// Generation from a cache whose tokens lie in several: what queries see of each, put together, is attention over all of them.
#include "lockstep/nn/attention_decode.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/text.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;

constexpr int64_t kParts = 3, kHeads = 4, kKvHeads = 2, kNew = 2, kSlots = 3, kCapacity = 16;
constexpr int64_t kStarts[] = {9, 2}, kSlotOf[] = {2, 0};

// Part 0 has no token of the second sequence's beginning.
int64_t part_of(int64_t sequence, int64_t token) { return (token * 5 + sequence * 2 + 1) % kParts; }

// Where the first `length` tokens of sequence b that part p has stand.
std::vector<int32_t> places_of(int64_t p, int64_t b, int64_t length) {
  std::vector<int32_t> places;
  for (int64_t token = 0; token < length; ++token)
    if (part_of(b, token) == p) places.push_back(static_cast<int32_t>(token));
  return places;
}

// What part p has of sequence b before `start`, and of `count` tokens from there on. `here`: all of them.
CachePart cache_part(int64_t p, int64_t b, int64_t start, int64_t count, const std::vector<int32_t>& here) {
  CachePart part{.held = static_cast<int64_t>(places_of(p, b, start).size()), .here = &here};
  part.runs = {{.row = 0, .count = count, .position = start}};
  for (int64_t t = 0; t < count; ++t)
    if (part_of(b, start + t) == p) part.kept.push_back(t);
  return part;
}

struct Case {
  at::ScalarType dtype;
  int64_t size;
  double scale = 0;
  int64_t window = 0;
  bool sinks = false;
};

class DecodeHere : public ::testing::TestWithParam<Case> {};

TEST_P(DecodeHere, PartsMakeTheWhole) {
  const auto [dtype, size, scale, window, with_sinks] = GetParam();
  const at::Tensor sinks = with_sinks ? testing::random("sinks", {kHeads}).to(dtype) : at::Tensor();
  int made = 0;
  const auto random = [&made, size = size, dtype = dtype](int64_t heads, int64_t tokens) {
    return testing::random(cat("tensor ", ++made), {1, tokens, heads, size}).to(dtype);
  };
  std::vector<at::Tensor> keys, values, queries;  // by sequence
  for (const int64_t start : kStarts) {
    keys.push_back(random(kKvHeads, start + kNew));
    values.push_back(random(kKvHeads, start + kNew));
    queries.push_back(random(kHeads, kNew));
  }
  std::vector<at::Tensor> outs, logsumexps;  // by part
  for (int64_t p = 0; p < kParts; ++p) {
    const auto empty = [size = size, dtype = dtype] { return at::zeros({kSlots, kKvHeads, kCapacity, size}, dtype); };
    const KvCacheLayer cache{.k = empty(), .v = empty()};
    std::vector<std::vector<int32_t>> here = {places_of(p, 0, kStarts[0] + kNew), places_of(p, 1, kStarts[1] + kNew)};
    std::vector<CachePart> parts;
    std::vector<CacheSpan> spans;
    for (size_t b = 0; b < 2; ++b) {
      const auto sequence = static_cast<int64_t>(b);
      const std::vector<int32_t> first = places_of(p, sequence, kStarts[b]);
      const CachePart before = cache_part(p, sequence, 0, kStarts[b], first);
      const CacheSpan span{.slot = kSlotOf[b], .start = 0, .part = &before};
      append_to_cache(keys[b].narrow(1, 0, kStarts[b]), values[b].narrow(1, 0, kStarts[b]), cache, {&span, 1});
      parts.push_back(cache_part(p, sequence, kStarts[b], kNew, here[b]));
    }
    for (size_t b = 0; b < 2; ++b) spans.push_back({.slot = kSlotOf[b], .start = kStarts[b], .part = &parts[b]});
    const auto new_ones = [&](const std::vector<at::Tensor>& of) {
      return at::cat({of[0].narrow(1, kStarts[0], kNew), of[1].narrow(1, kStarts[1], kNew)});
    };
    append_to_cache(new_ones(keys), new_ones(values), cache, spans);
    const SeenSums sums = attention_decode_here(at::cat(queries), cache, spans, {.scale = scale, .window = window, .sinks = sinks});
    EXPECT_EQ(sums.out.scalar_type(), at::kFloat);
    outs.push_back(sums.out.to(at::kDouble));
    logsumexps.push_back(sums.logsumexp.to(at::kDouble).transpose(1, 2).unsqueeze(3));
  }
  const at::Tensor weights = at::softmax(at::stack(logsumexps), 0);  // [parts, B, T, H, 1]
  const at::Tensor out = at::stack(outs).mul(weights).sum(0), logsumexp = at::logsumexp(at::stack(logsumexps), 0);
  for (int64_t b = 0; b < 2; ++b) {
    const auto of_heads = [&](const std::vector<at::Tensor>& of) {  // [H, tokens, K]
      return of[static_cast<size_t>(b)][0].transpose(0, 1).repeat_interleave(kHeads / of[static_cast<size_t>(b)].size(2), 0).to(at::kDouble);
    };
    for (int64_t t = 0; t < kNew; ++t) {
      const int64_t last = kStarts[b] + t + 1, seen = window > 0 ? std::min(window, last) : last, first = last - seen;
      at::Tensor scores = at::matmul(of_heads(queries).narrow(1, t, 1), of_heads(keys).narrow(1, first, seen).transpose(1, 2))
                                    .mul(scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(size)));  // [H, 1, seen]
      if (with_sinks) scores = at::cat({scores, sinks.to(at::kDouble).view({kHeads, 1, 1})}, -1);
      expect_close(out[b][t], at::matmul(at::softmax(scores, -1).narrow(-1, 0, seen), of_heads(values).narrow(1, first, seen)).squeeze(1), "out");
      expect_close(logsumexp[b][t].squeeze(1), at::logsumexp(scores, -1).squeeze(1), "logsumexp");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DecodeHere,
                         ::testing::Values(Case{at::kFloat, 6}, Case{at::kFloat, 40, 0.3}, Case{at::kBFloat16, 16}, Case{at::kFloat, 8, 0, 4},
                                           Case{at::kFloat, 8, 0, 0, true}, Case{at::kFloat, 8, 0.3, 3, true}));

}  // namespace
}  // namespace lockstep::nn
