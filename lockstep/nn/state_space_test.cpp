// A state space against its equations token by token in fp64, with every gradient; recomputation; generation against the whole text.
#include "lockstep/nn/state_space.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/test_state_space.h"

namespace lockstep::nn {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::random;
using testing::Documents;
using testing::StateSpaceParameters;

struct Case {
  int64_t batch = 2, seq = 13, hidden = 12;
  arch::StateSpaceSizes sizes{.heads = 4, .head_size = 5, .groups = 2, .state = 6, .chunk = 4};
  Documents documents{};
  at::ScalarType dtype = at::kFloat;
  double bound = 2e-5;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " S" << c.seq << " H" << c.sizes.heads << " P" << c.sizes.head_size << " G" << c.sizes.groups << " N"
             << c.sizes.state << " W" << c.sizes.convolution << " chunk " << c.sizes.chunk << " norm groups " << c.sizes.norm_groups
             << " documents " << c.documents.size() << " " << c.dtype;
}

const std::vector<Case> kCases = {
    {},
    {.batch = 1, .seq = 1},
    {.seq = 2, .sizes = {.heads = 3, .head_size = 4, .groups = 1, .state = 5, .convolution = 4, .chunk = 256, .projection_bias = true}},
    {.sizes = {.heads = 4, .head_size = 5, .groups = 4, .state = 6, .convolution = 2, .chunk = 1, .norm_groups = 4, .convolution_bias = false}},
    {.seq = 33, .sizes = {.heads = 2, .head_size = 16, .groups = 1, .state = 16, .chunk = 8, .norm_groups = 0}},
    {.sizes = {.heads = 4, .head_size = 3, .groups = 2, .state = 4, .chunk = 5, .norm_groups = 2, .step_least = 0.3, .step_most = 1.2}},
    {.documents = {{0, 3, 4, 10}, {0, 8}}},
    {.seq = 21, .sizes = {.heads = 4, .head_size = 8, .groups = 2, .state = 8, .chunk = 8}, .dtype = at::kBFloat16, .bound = 0.05},
};

TokenPlaces places_of(const Case& c) {
  TokenPlaces places{.length = c.seq, .positions = {}, .index = at::empty({c.batch, c.seq}, at::kInt),
                     .first_seen = testing::first_seen_of(c.documents, c.batch, c.seq)};
  for (int64_t i = 0; i < places.index.numel(); ++i) places.index.data_ptr<int32_t>()[i] = static_cast<int32_t>(i % c.seq);
  return places;
}

Sequences sequences_of(const Case& c, const TokenPlaces& places) {
  return {.count = c.batch, .length = c.seq, .valid = {}, .places = c.documents.empty() ? nullptr : &places};
}

TEST(StateSpace, MatchesAutograd) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const StateSpaceParameters parameters(c.sizes, c.hidden, c.dtype);
    const auto branch = testing::state_space_of(c.sizes, parameters);
    const TokenPlaces places = places_of(c);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype);
    const at::Tensor leaf = x.to(at::kDouble).requires_grad_(true);
    const std::vector<at::Tensor> leaves = testing::fp64_leaves(parameters);
    const at::Tensor expected = testing::state_space_reference(leaf, leaves, c.sizes, places.first_seen);
    const at::Tensor dy = random("dy", x.sizes()).to(c.dtype);
    expected.backward(dy.to(at::kDouble));

    StateSpace::Saved saved;
    expect_close(branch->forward(x, nullptr, sequences_of(c, places)), expected, "y without saved", c.bound);
    expect_close(branch->forward(x, &saved, sequences_of(c, places)), expected, "y", c.bound);
    expect_close(branch->backward_input(dy, saved), leaf.grad(), "dx", c.bound);
    for (const Parameter& p : parameters.all)
      if (p.defined()) {
        EXPECT_EQ(p.grad.abs().max().item<double>(), 0) << "I touched W";
      }
    branch->backward_weight(saved);
    for (size_t i = 0; i < parameters.all.size(); ++i)
      if (parameters.all[i].defined()) expect_close(parameters.all[i].grad, leaves[i].grad(), cat("gradient ", i), c.bound);
  }
}

// Two branches that each have half of the heads, and B and C of both groups, of which each reads one: what ranks of tp have where there
// are fewer groups than ranks.
TEST(StateSpace, HeadsMayReadOneGroupOfSeveral) {
  const Case c;
  arch::StateSpaceSizes s = c.sizes;
  s.norm_groups = 0;  // so that halves add up
  const StateSpaceParameters parameters(s, c.hidden);
  using P = StateSpaceParameters;
  const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}), dy = random("dy", x.sizes());
  const auto run = [&](StateSpace& branch) {
    StateSpace::Saved saved;
    const at::Tensor y = branch.forward(x, &saved), dx = branch.backward_input(dy, saved);
    branch.backward_weight(saved);
    return std::pair(y, dx);
  };
  const auto whole = testing::state_space_of(s, parameters);
  const auto [y, dx] = run(*whole);
  at::Tensor sum_y, sum_dx;
  const int64_t inner = s.inner() / 2, of_groups = s.groups * s.state, heads = s.heads / 2;
  for (int64_t half = 0; half < 2; ++half) {
    const auto rows = [&](const Parameter& p, std::vector<std::pair<int64_t, int64_t>> parts) {
      std::vector<at::Tensor> values, grads;
      for (const auto& [begin, count] : parts) values.push_back(p.value.narrow(0, begin, count)), grads.push_back(p.grad.narrow(0, begin, count));
      return std::pair(Parameter{.value = at::cat(values), .grad = at::zeros_like(at::cat(values))}, at::cat(grads));
    };
    const auto [in, din] = rows(parameters.all[P::kIn], {{half * inner, inner}, {s.inner() + half * inner, inner}, {2 * s.inner(), 2 * of_groups},
                                                         {2 * s.inner() + 2 * of_groups + half * heads, heads}});
    const auto [conv, dconv] = rows(parameters.all[P::kConv], {{half * inner, inner}, {s.inner(), 2 * of_groups}});
    const auto [bias, dbias] = rows(parameters.all[P::kConvBias], {{half * inner, inner}, {s.inner(), 2 * of_groups}});
    const auto of_heads = [&](P::Of which) { return rows(parameters.all[which], {{half * heads, heads}}); };
    const auto [dt_bias, ddt] = of_heads(P::kDtBias);
    const auto [a_log, da] = of_heads(P::kALog);
    const auto [d, dd] = of_heads(P::kD);
    const Parameter out{.value = parameters.all[P::kOut].value.narrow(1, half * inner, inner).contiguous(),
                        .grad = at::zeros({c.hidden, inner})};
    StateSpace branch({.sizes = s, .heads = heads, .groups = 2, .first_group = half, .read_groups = 1},
                      {.in = std::make_unique<Linear>(in), .convolution = conv, .convolution_bias = bias, .dt_bias = dt_bias, .a_log = a_log, .d = d,
                       .norm = std::make_unique<GatedNorm>(Parameter(), 0, 0, testing::kNormEps, nullptr), .out = std::make_unique<Linear>(out)});
    const auto [part_y, part_dx] = run(branch);
    sum_y = sum_y.defined() ? sum_y + part_y : part_y;
    sum_dx = sum_dx.defined() ? sum_dx + part_dx : part_dx;
    expect_close(a_log.grad, da, "a_log"), expect_close(d.grad, dd, "d"), expect_close(dt_bias.grad, ddt, "dt bias");
    const int64_t read = inner + half * s.state, other = inner + (1 - half) * s.state;
    for (const int64_t of_c : {int64_t{0}, of_groups}) {
      expect_close(conv.grad.narrow(0, read + of_c, s.state), dconv.narrow(0, read + of_c, s.state), "convolution of the group", 2e-5);
      expect_close(bias.grad.narrow(0, read + of_c, s.state), dbias.narrow(0, read + of_c, s.state), "its bias", 2e-5);
      expect_close(in.grad.narrow(0, inner + read + of_c, s.state), din.narrow(0, inner + read + of_c, s.state), "rows of the group", 2e-5);
      EXPECT_EQ(conv.grad.narrow(0, other + of_c, s.state).abs().max().item<double>(), 0);
      EXPECT_EQ(bias.grad.narrow(0, other + of_c, s.state).abs().max().item<double>(), 0);
      EXPECT_EQ(in.grad.narrow(0, inner + other + of_c, s.state).abs().max().item<double>(), 0);
    }
  }
  expect_close(sum_y, y, "y"), expect_close(sum_dx, dx, "dx", 2e-5);
}

TEST(StateSpace, RecomputesTheSameBits) {
  for (const Case& c : {Case{}, Case{.documents = {{0, 5}, {0, 1, 2}}}, Case{.dtype = at::kBFloat16}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const StateSpaceParameters parameters(c.sizes, c.hidden, c.dtype);
    const auto branch = testing::state_space_of(c.sizes, parameters);
    const TokenPlaces places = places_of(c);
    const Sequences sequences = sequences_of(c, places);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype), dy = random("dy", x.sizes()).to(c.dtype);
    const auto gradients = [&](const std::function<void(StateSpace::Saved&)>& keep) {
      for (const Parameter& p : parameters.all)
        if (p.defined()) p.grad.zero_();
      StateSpace::Saved saved;
      keep(saved);
      std::vector<at::Tensor> all = {branch->start_backward_input(dy, saved)()};
      branch->backward_weight(saved);
      for (const Parameter& p : parameters.all)
        if (p.defined()) all.push_back(p.grad.clone());
      return all;
    };
    const std::vector<at::Tensor> expected = gradients([&](StateSpace::Saved& saved) { branch->forward(x, &saved, sequences); });
    const std::vector<at::Tensor> again = gradients([&](StateSpace::Saved& saved) { branch->recompute(x, saved, sequences); });
    const std::vector<at::Tensor> restored = gradients([&](StateSpace::Saved& saved) {
      branch->forward(x, &saved, sequences);
      branch->forget(saved);
      branch->restore(x, saved);
    });
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(again[i], expected[i])) << i;
      EXPECT_TRUE(at::equal(restored[i], expected[i])) << i;
    }
  }
}

std::vector<CacheSpan> spans_at(const std::vector<int64_t>& slots, int64_t start) {
  std::vector<CacheSpan> spans;
  for (const int64_t slot : slots) spans.push_back({.slot = slot, .start = start});
  return spans;
}

at::Tensor part(const at::Tensor& t, int64_t begin, int64_t size) { return t.narrow(1, begin, size).contiguous(); }

// Prompts, single tokens and several at once, in slots that are neighbours and in ones that are not; a slot that begins anew.
TEST(StateSpace, DecodingGivesWhatForwardGives) {
  for (const Case& c : kCases) {
    if (!c.documents.empty()) continue;
    for (const std::vector<int64_t>& slots : {std::vector<int64_t>{0, 1}, std::vector<int64_t>{2, 0}}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const StateSpaceParameters parameters(c.sizes, c.hidden, c.dtype);
      const auto branch = testing::state_space_of(c.sizes, parameters);
      const at::Tensor x = random("x", {2, c.seq, c.hidden}).to(c.dtype), expected = branch->forward(x, nullptr);
      const KvCacheLayer cache = branch->new_cache(3, c.seq, x.options());
      EXPECT_EQ(cache.state.scalar_type(), at::kFloat);
      for (int round = 0; round < 2; ++round) {
        const int64_t prompt = (c.seq + 1) / 2, single = (c.seq - prompt) / 2;
        expect_close(branch->decode(part(x, 0, prompt), cache, spans_at(slots, 0)), part(expected, 0, prompt), "prompt", c.bound);
        for (int64_t s = prompt; s < prompt + single; ++s)
          expect_close(branch->decode(part(x, s, 1), cache, spans_at(slots, s)), part(expected, s, 1), cat("token ", s), c.bound);
        const int64_t rest = c.seq - prompt - single;
        if (rest > 0)
          expect_close(branch->decode(part(x, prompt + single, rest), cache, spans_at(slots, prompt + single)),
                       part(expected, prompt + single, rest), "several tokens behind the prompt", c.bound);
      }
    }
  }
}

TEST(StateSpace, ATokenDoesNotSeeItsNeighboursInTheBatch) {
  const Case c{.batch = 3, .seq = 6};
  const StateSpaceParameters parameters(c.sizes, c.hidden);
  const auto branch = testing::state_space_of(c.sizes, parameters);
  const at::Tensor x = random("x", {c.batch, c.seq, c.hidden});
  const KvCacheLayer all = branch->new_cache(c.batch, c.seq, x.options()), alone = branch->new_cache(1, c.seq, x.options());
  for (int64_t s = 0; s < c.seq; ++s) {
    const at::Tensor y = branch->decode(part(x, s, 1), all, spans_at({0, 1, 2}, s));
    const at::Tensor one = branch->decode(part(x, s, 1).narrow(0, 1, 1).contiguous(), alone, spans_at({0}, s));
    EXPECT_TRUE(at::equal(y.narrow(0, 1, 1), one)) << s;
  }
}

TEST(PieceExchange, KnowsThePiecesOfEverySplit) {
  const auto places_of_ranks = [](const std::vector<std::vector<int32_t>>& ranks) {
    TokenPlaces places{.length = 8, .positions = {}, .index = {}, .first_seen = {}};
    for (const std::vector<int32_t>& rank : ranks) {
      at::Tensor index = at::empty({1, static_cast<int64_t>(rank.size())}, at::kInt);
      for (size_t i = 0; i < rank.size(); ++i) index.data_ptr<int32_t>()[i] = rank[i];
      places.index_of_ranks.push_back(index);
    }
    return places;
  };
  const Pieces contiguous = pieces_of(places_of_ranks({{0, 1, 2, 3}, {4, 5, 6, 7}}), 4);
  EXPECT_EQ(contiguous.of_each, 1);
  EXPECT_EQ(contiguous.order, (std::vector<int64_t>{0, 1}));
  const Pieces zigzag = pieces_of(places_of_ranks({{0, 1, 6, 7}, {2, 3, 4, 5}}), 4);
  EXPECT_EQ(zigzag.of_each, 2);
  EXPECT_EQ(zigzag.length, 2);
  EXPECT_EQ(zigzag.order, (std::vector<int64_t>{0, 2, 3, 1}));
  EXPECT_EQ(zigzag.position(0, 1), 3);
  EXPECT_THROW(pieces_of(places_of_ranks({{0, 1, 2, 7}, {3, 4, 5, 6}}), 4), InternalError);
  EXPECT_THROW(pieces_of(places_of_ranks({{0, 2, 4, 6}, {1, 3, 5, 7}}), 4), InternalError);
}

}  // namespace
}  // namespace lockstep::nn
