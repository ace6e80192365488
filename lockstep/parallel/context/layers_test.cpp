// Branches of attention whose sequences lie on several ranks in parts, against those of one rank: outputs, gradients of inputs, and sums
// of the gradients of parameters over the ranks, in every mode of recomputation.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/latent_attention.h"
#include "lockstep/nn/whole_norm.h"
#include "lockstep/parallel/context/test_context.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::ContextKind;
using config::ContextSplit;
using lockstep::testing::expect_close;
using lockstep::testing::parameter;
using lockstep::testing::random;
using lockstep::testing::run_ranks;
using testing::part_of;
using testing::places_of;
using testing::TestGroup;
using testing::TestSequences;

constexpr int64_t kWidth = 12;
const TestSequences kSequences{.length = 19, .documents = {{0, 6, 15}, {0, 2}}};

struct Built {
  std::vector<nn::Parameter> parameters;
  std::unique_ptr<nn::Branch> branch;
};
// `group` null: one rank.
using Build = std::function<Built(ContextGroup* group)>;

std::unique_ptr<nn::ContextAttention> context_of(ContextGroup* group) {
  return group ? make_context_attention(*group, program::named_call("block"), "attention") : nullptr;
}

Built attention(ContextGroup* group) {
  const nn::Attention::Shape shape{.heads = 4, .kv_heads = 2, .head_size = 4, .window = 5};
  Built built;
  built.parameters = {parameter("qkv", {8 * 4, kWidth}, 0.4), parameter("out", {kWidth, 16}, 0.4), parameter("q_norm", {4}), parameter("k_norm", {4})};
  const std::vector<nn::Parameter>& p = built.parameters;
  built.branch = std::make_unique<nn::Attention>(shape, std::make_unique<nn::Linear>(p[0]), nn::Rotary(32, 4, 100, p[0].value.options()),
                                                 std::make_unique<nn::Linear>(p[1]), std::make_unique<nn::HeadNorm>(p[2], p[3], 1e-6),
                                                 context_of(group));
  return built;
}

Built attention_with_sinks(ContextGroup* group) {
  const nn::Attention::Shape shape{.heads = 4, .kv_heads = 2, .head_size = 4, .scale = 0.4};
  Built built;
  built.parameters = {parameter("qkv", {8 * 4, kWidth}, 0.4), parameter("out", {kWidth, 16}, 0.4), parameter("q_norm", {16}), parameter("k_norm", {8}),
                      parameter("sinks", {4})};
  const std::vector<nn::Parameter>& p = built.parameters;
  auto norm = std::make_unique<nn::WholeNorm>(p[2], p[3], nn::WholeNorm::Options{.q_width = 16, .k_width = 8, .eps = 1e-6}, nullptr);
  built.branch = std::make_unique<nn::Attention>(shape, std::make_unique<nn::Linear>(p[0]), nn::Rotary(32, 2, 100, p[0].value.options()),
                                                 std::make_unique<nn::Linear>(p[1]), std::move(norm), context_of(group), p[4]);
  return built;
}

Built latent_attention(ContextGroup* group) {
  const arch::LatentSizes s{.q_rank = 10, .kv_rank = 6, .nope = 4, .rope = 4, .value = 5};
  constexpr int64_t kHeads = 3;
  Built built;
  built.parameters = {parameter("down", {s.projected(), kWidth}, 0.4),
                      parameter("q_norm", {s.q_rank}),
                      parameter("kv_norm", {s.kv_rank}),
                      parameter("q_up", {kHeads * s.head(), s.q_rank}, 0.4),
                      parameter("kv_up", {kHeads * (s.nope + s.value), s.kv_rank}, 0.4),
                      parameter("out", {kWidth, kHeads * s.value}, 0.4)};
  const std::vector<nn::Parameter>& p = built.parameters;
  std::unique_ptr<nn::ContextAttention> context = context_of(group);
  const bool travel = context && context->moves_sources();
  const auto linear = [&](size_t of) { return std::make_unique<nn::Linear>(p[of]); };
  built.branch = std::make_unique<nn::LatentAttention>(
      nn::LatentAttention::Shape{.sizes = s, .heads = kHeads, .scale = 0.4},
      nn::LatentAttention::Parts{.down = linear(0),
                                 .q_norm = nn::RmsNorm(p[1], arch::kLatentNormEps),
                                 .kv_norm = nn::RmsNorm(p[2], arch::kLatentNormEps),
                                 .q_up = linear(3),
                                 .kv_up = linear(4),
                                 .kv_weight = p[4].value,
                                 .out = linear(5),
                                 .rotary = nn::Rotary(32, s.rope, 100, p[0].value.options()),
                                 .keys = std::make_unique<nn::SharedRows>(),
                                 .context = std::move(context),
                                 .latents = travel ? std::make_unique<nn::SharedRows>() : nullptr});
  return built;
}

enum class Keep { kAll, kSelective, kFull };

struct Outcome {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;
};

Outcome pass(const Build& build, ContextGroup* group, const nn::TokenPlaces& places, const at::Tensor& x, const at::Tensor& dy, Keep keep) {
  Built built = build(group);
  const nn::Sequences sequences{.count = x.size(0), .length = x.size(1), .valid = {}, .places = &places};
  auto saved = built.branch->new_saved();
  Outcome outcome{.y = built.branch->forward(x, keep == Keep::kFull ? nullptr : saved.get(), sequences), .dx = {}, .gradients = {}};
  if (keep == Keep::kSelective) built.branch->forget(*saved), built.branch->restore(x, *saved);
  if (keep == Keep::kFull) built.branch->recompute(x, *saved, sequences);
  outcome.dx = built.branch->backward_input(dy, *saved);
  built.branch->backward_weight(*saved);
  for (const nn::Parameter& p : built.parameters) outcome.gradients.push_back(p.grad);
  return outcome;
}

// The sums of the ranks' gradients are those of `whole`.
void expect_sums(const std::vector<Outcome>& of_ranks, const Outcome& whole) {
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    at::Tensor sum = of_ranks[0].gradients[i].clone();
    for (size_t rank = 1; rank < of_ranks.size(); ++rank) sum.add_(of_ranks[rank].gradients[i]);
    expect_close(sum, whole.gradients[i], cat("gradient ", i), 3e-5);
  }
}

void check(const Build& build, ContextKind kind, int ranks, ContextSplit split) {
  SCOPED_TRACE(cat("kind ", static_cast<int>(kind), " ranks ", ranks, " split ", static_cast<int>(split)));
  const at::Tensor x = random("x", {kSequences.count(), kSequences.length, kWidth}), dy = random("dy", x.sizes());
  const nn::TokenPlaces all = places_of(kSequences, {}, 0);
  const Outcome whole = pass(build, nullptr, all, x, dy, Keep::kAll);
  std::vector<Outcome> of_ranks(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](comm::World& world) {
    TestGroup group(world, ranks, {.kind = kind, .inner_ranks = ranks % 2 == 0 ? 2 : 1, .split = split, .documents = true});
    const nn::TokenPlaces places = places_of(kSequences, {.ranks = ranks, .split = split}, world.rank());
    const at::Tensor own_x = part_of(x, places, 0.3), own_dy = part_of(dy, places);
    Outcome& mine = of_ranks[static_cast<size_t>(world.rank())];
    mine = pass(build, group.group.get(), places, own_x, own_dy, Keep::kAll);
    expect_close(testing::without_filler(mine.y, places), part_of(whole.y, places), "y", 2e-5);
    expect_close(testing::without_filler(mine.dx, places), part_of(whole.dx, places), "dx", 3e-5);
    for (const Keep keep : {Keep::kSelective, Keep::kFull}) {
      const Outcome again = pass(build, group.group.get(), places, own_x, own_dy, keep);
      EXPECT_TRUE(again.dx.equal(mine.dx));
      for (size_t i = 0; i < mine.gradients.size(); ++i) EXPECT_TRUE(again.gradients[i].equal(mine.gradients[i])) << i;
    }
  });
  expect_sums(of_ranks, whole);
}

constexpr ContextKind kKinds[] = {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather, ContextKind::k2d};

TEST(ContextLayers, AttentionIsThatOfOneRank) {
  for (const ContextKind kind : kKinds) check(attention, kind, 2, ContextSplit::kZigzag), check(attention, kind, 4, ContextSplit::kContiguous);
}

TEST(ContextLayers, AttentionWithSinksIsThatOfOneRank) {
  for (const ContextKind kind : kKinds)
    check(attention_with_sinks, kind, 2, ContextSplit::kZigzag), check(attention_with_sinks, kind, 4, ContextSplit::kContiguous);
}

TEST(ContextLayers, LatentAttentionIsThatOfOneRank) {
  for (const ContextKind kind : kKinds) {
    check(latent_attention, kind, 3, ContextSplit::kZigzag);
    check(latent_attention, kind, 2, ContextSplit::kContiguous);
  }
}

// C + R numbers of a token go round, not keys and values of all heads.
TEST(ContextLayers, LatentsTravelInARing) {
  constexpr int kRanks = 2;
  run_ranks(kRanks, [](comm::World& world) {
    TestGroup group(world, kRanks, {.kind = ContextKind::kRing});
    const nn::TokenPlaces places = places_of(kSequences, {.ranks = kRanks, .split = ContextSplit::kZigzag}, world.rank());
    const at::Tensor x = random("x", {kSequences.count(), places.index.size(1), kWidth});
    pass(latent_attention, group.group.get(), places, x, x, Keep::kAll);
    const program::CallId ring = program::named_call("block").of_part("attention.ring");
    const int64_t numel = x.size(0) * x.size(1) * (6 + 4);
    program::Ledger expected;
    const auto add = [&](program::CallPhase phase, int64_t element, int64_t times) {
      const program::CollectiveCall call{.collective = program::Collective::kShift, .algorithm = program::Algorithm::kDirect, .group = {0, 1},
                                         .numel = numel, .element_size = element};
      expected.add({.id = ring.with(phase), .collective = call.collective, .axis = "cp", .algorithm = call.algorithm}, program::payload(call),
                   program::predicted_sends(call, world.rank()), times);
    };
    add(program::CallPhase::kForward, 4, kRanks - 1);
    add(program::CallPhase::kGather, 4, kRanks - 1);
    add(program::CallPhase::kBackward, 4, kRanks);
    const auto lines = program::Ledger::difference(expected, group.all->take_ledger());
    EXPECT_TRUE(lines.empty()) << join(lines, "\n");
  });
}

}  // namespace
}  // namespace lockstep::parallel
