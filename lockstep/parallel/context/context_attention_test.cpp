// Every way of attention over parts of sequences against softmax(q k^T) v of the whole ones, written out for autograd; and what it
// communicates against formulas.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "lockstep/config/fields.h"
#include "lockstep/parallel/context/test_context.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::ContextKind;
using config::ContextSplit;
using lockstep::testing::expect_close;
using lockstep::testing::leaf;
using lockstep::testing::random;
using lockstep::testing::run_ranks;
using program::CallPhase;
using program::Collective;
using testing::part_of;
using testing::places_of;
using testing::TestGroup;
using testing::TestSequences;

struct Shape {
  int64_t length, heads, kv_heads, key, value, window;
};
constexpr Shape kShapes[] = {{13, 4, 2, 8, 8, 0}, {21, 6, 3, 8, 4, 0}, {17, 3, 1, 4, 4, 7}, {29, 4, 2, 4, 4, 3}};

struct Case {
  ContextKind kind = ContextKind::kRing;
  int inner = 1;
  ContextSplit split = ContextSplit::kZigzag;
  Shape shape = kShapes[0];
  bool documents = false;
  at::ScalarType dtype = at::kFloat;
  double bound = 2e-5;
  bool overlap = true;
  bool sinks = false;
};

TestSequences sequences_of(const Case& c) {
  if (c.documents) return {.length = c.shape.length, .documents = {{0, 3, 10}, {0, 1}}};
  return {.length = c.shape.length, .documents = {{0}, {0}}};
}

// Of whole sequences.
struct Whole {
  explicit Whole(const Case& c) {
    const Shape& s = c.shape;
    const auto of = [&](const char* name, int64_t heads, int64_t width) { return random(name, {2, s.length, heads, width}).to(c.dtype); };
    q = leaf(of("q", s.heads, s.key)), k = leaf(of("k", s.kv_heads, s.key)), v = leaf(of("v", s.kv_heads, s.value));
    dout = of("dout", s.heads, s.value).to(at::kFloat);
    const at::Tensor keys = k.repeat_interleave(s.heads / s.kv_heads, 2), values = v.repeat_interleave(s.heads / s.kv_heads, 2);
    at::Tensor scores = at::matmul(q.transpose(1, 2), keys.permute({0, 2, 3, 1})) / std::sqrt(static_cast<double>(s.key));
    scores = scores + testing::bias_of(sequences_of(c), s.window).unsqueeze(1);
    if (c.sinks) {
      sinks = leaf(random("sinks", {s.heads}).to(c.dtype));
      scores = at::cat({scores, sinks.view({1, -1, 1, 1}).expand({2, s.heads, s.length, 1})}, -1);
    }
    out = at::matmul(at::softmax(scores, -1).narrow(-1, 0, s.length), values.transpose(1, 2)).transpose(1, 2);
    out.backward(dout);
  }
  at::Tensor q, k, v, sinks, out, dout;
};

// What a rank puts on the links, from the sizes of the case alone.
class Expected {
 public:
  Expected(const Case& c, int rank, int ranks, int64_t tokens) : c_(c), rank_(rank), ranks_(ranks), rows_(2 * tokens) {}

  program::Ledger ledger(int64_t element) {
    const Shape& s = c_.shape;
    const int64_t heads_wide = s.key + s.value;
    switch (c_.kind) {
      case ContextKind::kRing:
        ring({"cp", 0, 1, ranks_}, rows_ * s.kv_heads * heads_wide, element);
        break;
      case ContextKind::kAllGather: {
        const Over all{"cp", 0, 1, ranks_};
        for (const CallPhase phase : {CallPhase::kForward, CallPhase::kGather})
          add(all, "gather", phase, Collective::kAllGather, ranks_ * rows_ * s.kv_heads * heads_wide, element, 1);
        add(all, "gather", CallPhase::kBackward, Collective::kReduceScatter, ranks_ * rows_ * s.kv_heads * heads_wide, 4, 1);
        break;
      }
      case ContextKind::kAllToAll:
        heads({"cp", 0, 1, ranks_}, element);
        break;
      case ContextKind::k2d: {
        heads({"cp inner", rank_ / c_.inner * c_.inner, 1, c_.inner}, element);
        const int outer = ranks_ / c_.inner;
        ring({"cp outer", rank_ % c_.inner, c_.inner, outer}, c_.inner * rows_ * kv_each(c_.inner) * heads_wide, element);
        break;
      }
    }
    return std::move(ledger_);
  }

 private:
  struct Over {
    const char* axis;
    int first, stride, size;
  };
  // Key heads that a rank's query heads read, at most.
  int64_t kv_each(int n) const {
    const int64_t each = (c_.shape.heads + n - 1) / n;
    size_t most = 0;
    for (int rank = 0; rank < n; ++rank) {
      std::set<int64_t> read;
      for (int64_t head = rank * each; head < std::min((rank + 1) * each, c_.shape.heads); ++head)
        read.insert(head / (c_.shape.heads / c_.shape.kv_heads));
      most = std::max(most, read.size());
    }
    return static_cast<int64_t>(most);
  }
  // Of each piece what the next one sees, where that is no more than the piece; its gradients come back.
  bool ends(const Over& over, int64_t numel, int64_t element) {
    const bool zigzag = c_.split == ContextSplit::kZigzag;
    const int64_t tokens = rows_ / 2 * (ranks_ / over.size), piece = zigzag ? tokens / 2 : tokens, reach = c_.shape.window - 1;
    if (over.size == 1 || reach < 1 || reach > piece || (zigzag && c_.documents)) return false;
    for (const bool early : {true, false}) {
      if (!early && !zigzag) continue;
      const Collective out = early ? Collective::kShift : Collective::kShiftBack, home = early ? Collective::kShiftBack : Collective::kShift;
      add(over, "ring", CallPhase::kForward, out, numel / tokens * reach, element, 1);
      add(over, "ring", CallPhase::kGather, out, numel / tokens * reach, element, 1);
      add(over, "ring", CallPhase::kBackward, home, numel / tokens * reach, 4, 1);
    }
    return true;
  }
  // To the farthest rank that has a query for it, of some first token of a part, which sees the window - 1 before it.
  void ring(const Over& over, int64_t numel, int64_t element) {
    if (ends(over, numel, element)) return;
    int64_t hops = over.size - 1;
    if (c_.shape.window > 0 && c_.split == ContextSplit::kContiguous) {
      const int64_t tokens = rows_ / 2 * (ranks_ / over.size);
      for (hops = 0; hops < over.size - 1 && hops * tokens + 1 < c_.shape.window;) ++hops;
    }
    add(over, "ring", CallPhase::kForward, Collective::kShift, numel, element, hops);
    add(over, "ring", CallPhase::kGather, Collective::kShift, numel, element, hops);
    add(over, "ring", CallPhase::kBackward, Collective::kShift, numel, 4, over.size);
  }
  void heads(const Over& over, int64_t element) {
    const int64_t q = (c_.shape.heads + over.size - 1) / over.size, kv = kv_each(over.size);
    const int64_t in = over.size * rows_ * (q * c_.shape.key + kv * (c_.shape.key + c_.shape.value));
    const int64_t out = over.size * rows_ * q * c_.shape.value;
    add(over, "heads", CallPhase::kForward, Collective::kAllToAll, in, element, 1);
    add(over, "heads", CallPhase::kGather, Collective::kAllToAll, out, element, 1);
    add(over, "heads", CallPhase::kBackward, Collective::kAllToAll, out, element, 1);
    add(over, "heads", CallPhase::kBackward, Collective::kAllToAll, in, element, 1);
  }
  void add(const Over& over, const std::string& what, CallPhase phase, Collective collective, int64_t numel, int64_t element, int64_t times) {
    if (over.size == 1 || times == 0) return;
    program::CollectiveCall call{.collective = collective, .algorithm = program::Algorithm::kDirect, .group = {}, .numel = numel, .element_size = element};
    for (int i = 0; i < over.size; ++i) call.group.push_back(over.first + i * over.stride);
    const program::CallId id = program::named_call("block").of_part("attention." + what).with(phase);
    ledger_.add({.id = id, .collective = collective, .axis = over.axis, .algorithm = call.algorithm}, program::payload(call),
                program::predicted_sends(call, (rank_ - over.first) / over.stride), times);
  }

  const Case& c_;
  const int rank_, ranks_;
  const int64_t rows_;
  program::Ledger ledger_;
};

// -> the gradient of the sinks that this rank makes.
at::Tensor run_case(const Case& c, TestGroup& ranks, const Whole& whole) {
  ContextGroup& group = *ranks.group;
  SCOPED_TRACE(cat(config::choices_of(c.kind)[static_cast<size_t>(c.kind)], " inner ", c.inner, " of ", group.size(), " split ", static_cast<int>(c.split),
                   " length ", c.shape.length, " heads ", c.shape.heads, " documents ", c.documents, " rank ", group.rank()));
  const nn::TokenPlaces places = places_of(sequences_of(c), {.ranks = group.size(), .split = c.split}, group.rank());
  const auto attention = make_context_attention(group, program::named_call("block"), "attention");
  // Views of one memory, which gradients overwrite; tokens behind the end have values too.
  const auto mine = [&](const at::Tensor& x) { return part_of(x, places, 0.5).to(c.dtype); };
  const nn::ContextAttention::Heads heads{.q = mine(whole.q), .k = mine(whole.k), .v = mine(whole.v)};
  const at::Tensor sinks = c.sinks ? whole.sinks.detach().to(c.dtype) : at::Tensor();
  const at::Tensor dsinks = c.sinks ? at::zeros(sinks.sizes(), at::kFloat) : at::Tensor();
  const nn::ContextAttention::Options options{.scale = 0, .window = c.shape.window, .sinks = sinks};
  const at::Tensor unkept = attention->forward(heads, places, options, nullptr);
  ranks.all->take_ledger();
  if (ranks.inner) ranks.inner->take_ledger(), ranks.outer->take_ledger();

  std::unique_ptr<nn::ContextAttention::Saved> saved;
  const at::Tensor out = attention->forward(heads, places, options, &saved);
  EXPECT_TRUE(out.is_contiguous() && out.equal(unkept));
  const at::Tensor dout = part_of(whole.dout, places).to(c.dtype);
  attention->backward(dout.view({2, dout.size(1), -1}), std::move(saved), {.dq = heads.q, .dk = heads.k, .dv = heads.v, .dsinks = dsinks});
  const auto compare = [&](const at::Tensor& found, const at::Tensor& expected, const char* what) {
    expect_close(testing::without_filler(found.to(at::kFloat), places), part_of(expected, places), what, c.bound);
  };
  compare(out.view(dout.sizes()), whole.out, "out");
  compare(heads.q, whole.q.grad(), "dq");
  compare(heads.k, whole.k.grad(), "dk");
  compare(heads.v, whole.v.grad(), "dv");

  program::Ledger recorded = ranks.all->take_ledger();
  if (ranks.inner) recorded.merge(ranks.inner->take_ledger()), recorded.merge(ranks.outer->take_ledger());
  const auto lines =
      program::Ledger::difference(Expected(c, group.rank(), group.size(), dout.size(1)).ledger(c.dtype == at::kFloat ? 4 : 2), recorded);
  EXPECT_TRUE(lines.empty()) << join(lines, "\n");
  return dsinks;
}

void run_cases(int ranks, const std::vector<Case>& cases) {
  std::vector<Whole> wholes;
  for (const Case& c : cases) wholes.emplace_back(c);
  std::vector<std::vector<at::Tensor>> dsinks(cases.size(), std::vector<at::Tensor>(static_cast<size_t>(ranks)));
  run_ranks(ranks, [&](comm::World& world) {
    std::map<TestGroup::Options, std::unique_ptr<TestGroup>> groups;
    for (size_t i = 0; i < cases.size(); ++i) {
      const TestGroup::Options options{.kind = cases[i].kind, .inner_ranks = cases[i].inner, .split = cases[i].split,
                                       .documents = cases[i].documents, .overlap = cases[i].overlap};
      std::unique_ptr<TestGroup>& group = groups[options];
      if (!group) group = std::make_unique<TestGroup>(world, ranks, options);
      dsinks[i][static_cast<size_t>(world.rank())] = run_case(cases[i], *group, wholes[i]);
    }
  });
  for (size_t i = 0; i < cases.size(); ++i)
    if (cases[i].sinks) expect_close(at::stack(dsinks[i]).sum(0), wholes[i].sinks.grad(), cat("dsinks of case ", i), cases[i].bound);
}

std::vector<Case> cases_of(ContextKind kind, int inner) {
  std::vector<Case> cases;
  for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
    for (const Shape& shape : kShapes)
      for (const bool documents : {false, true})
        cases.push_back({.kind = kind, .inner = inner, .split = split, .shape = shape, .documents = documents});
  return cases;
}

class ContextAttention : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ContextAttention, ::testing::Values(2, 3, 4));

TEST_P(ContextAttention, RingIsThatOfOneRank) { run_cases(GetParam(), cases_of(ContextKind::kRing, 1)); }
TEST_P(ContextAttention, AllGatherIsThatOfOneRank) { run_cases(GetParam(), cases_of(ContextKind::kAllGather, 1)); }
TEST_P(ContextAttention, AllToAllIsThatOfOneRank) { run_cases(GetParam(), cases_of(ContextKind::kAllToAll, 1)); }
TEST_P(ContextAttention, HeadsInsideAndARingAcrossAreThatOfOneRank) {
  run_cases(GetParam(), cases_of(ContextKind::k2d, GetParam() == 3 ? 3 : 2));
}

// One more score that every query sees, whatever keys it sees and where these are.
TEST_P(ContextAttention, SinksAreThoseOfOneRank) {
  std::vector<Case> cases;
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather, ContextKind::kAllToAll, ContextKind::k2d})
    for (const Shape& shape : kShapes)
      cases.push_back({.kind = kind, .inner = GetParam() == 3 ? 3 : 2, .shape = shape, .documents = shape.window == 0, .sinks = true});
  run_cases(GetParam(), cases);
}

TEST(ContextAttentionKinds, OfBf16AreThatOfOneRankRoundedOnce) {
  std::vector<Case> cases;
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather, ContextKind::kAllToAll, ContextKind::k2d})
    cases.push_back({.kind = kind, .inner = 2, .documents = true, .dtype = at::kBFloat16, .bound = 0.03});
  run_cases(4, cases);
}

TEST(ContextAttentionKinds, WaitForEachCallWithoutOverlap) {
  std::vector<Case> cases;
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather, ContextKind::kAllToAll, ContextKind::k2d})
    cases.push_back({.kind = kind, .inner = 2, .overlap = false});
  run_cases(2, cases);
}

TEST(ContextGroup, RefusesTokensOfAnotherRank) {
  run_ranks(2, [](comm::World& world) {
    TestGroup ranks(world, 2, {.kind = ContextKind::kRing});
    const nn::TokenPlaces others = places_of({.length = 8, .documents = {{0}}}, {.ranks = 2, .split = ContextSplit::kZigzag}, 1 - world.rank());
    const at::Tensor x = at::zeros({1, 4, 1, 4}, at::kFloat);
    const auto attention = make_context_attention(*ranks.group, program::named_call("block"), "attention");
    EXPECT_THROW(attention->forward({.q = x, .k = x, .v = x}, others, {}, nullptr), InternalError);
  });
}

}  // namespace
}  // namespace lockstep::parallel
