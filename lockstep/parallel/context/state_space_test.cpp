// State spaces of sequences that lie on several ranks in pieces, against those of one rank: outputs, gradients of inputs, sums of the
// gradients of parameters, in every mode of recomputation; generation; and what is communicated, against formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/test_state_space.h"
#include "lockstep/parallel/context/piece_exchange.h"
#include "lockstep/parallel/context/test_context.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::ContextSplit;
using lockstep::testing::expect_close;
using lockstep::testing::random;
using lockstep::testing::run_ranks;
using nn::testing::state_space_of;
using nn::testing::StateSpaceParameters;
using program::CallPhase;
using testing::part_of;
using testing::places_of;
using testing::TestGroup;
using testing::TestSequences;

constexpr int64_t kWidth = 12;
constexpr arch::StateSpaceSizes kSizes{.heads = 4, .head_size = 5, .groups = 2, .state = 6, .chunk = 3};

// Equal pieces whatever the documents are: where each begins is said of sequences that are cut as one document is.
nn::TokenPlaces pieces_of_rank(const TestSequences& sequences, const data::TokenSplit& split, int rank) {
  const TestSequences whole{.length = sequences.length, .documents = std::vector<std::vector<int32_t>>(sequences.documents.size(), {0})};
  nn::TokenPlaces places = places_of(whole, split, rank);
  const at::Tensor first = nn::testing::first_seen_of(sequences.documents, sequences.count(), sequences.length);
  for (int64_t i = 0; i < places.index.numel(); ++i) {
    const int32_t place = places.index.const_data_ptr<int32_t>()[i];
    if (place < sequences.length)
      places.first_seen.data_ptr<int32_t>()[i] = first.const_data_ptr<int32_t>()[i / places.index.size(1) * sequences.length + place];
  }
  if (split.ranks > 1) places.first_seen_of_places = first;
  return places;
}

enum class Keep { kAll, kSelective, kFull };

struct Outcome {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;
};

Outcome pass(ContextGroup* group, const nn::TokenPlaces& places, const at::Tensor& x, const at::Tensor& dy, Keep keep) {
  const StateSpaceParameters parameters(kSizes, kWidth);
  const auto branch =
      state_space_of(kSizes, parameters, group ? make_piece_exchange(*group, program::named_call("block"), "ssm") : nullptr);
  const nn::Sequences sequences{.count = x.size(0), .length = x.size(1), .valid = {}, .places = &places};
  auto saved = branch->new_saved();
  Outcome outcome{.y = branch->forward(x, keep == Keep::kFull ? nullptr : saved.get(), sequences), .dx = {}, .gradients = {}};
  if (keep == Keep::kSelective) branch->forget(*saved), branch->restore(x, *saved);
  if (keep == Keep::kFull) branch->recompute(x, *saved, sequences);
  outcome.dx = branch->backward_input(dy, *saved);
  branch->backward_weight(*saved);
  for (const nn::Parameter& p : parameters.all)
    if (p.defined()) outcome.gradients.push_back(p.grad);
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

void check(const TestSequences& sequences, int ranks, ContextSplit split, bool overlap) {
  SCOPED_TRACE(cat("ranks ", ranks, " split ", static_cast<int>(split), " length ", sequences.length, " documents ", sequences.documents[0].size()));
  const at::Tensor x = random("x", {sequences.count(), sequences.length, kWidth}), dy = random("dy", x.sizes());
  const Outcome whole = pass(nullptr, pieces_of_rank(sequences, {}, 0), x, dy, Keep::kAll);
  std::vector<Outcome> of_ranks(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](comm::World& world) {
    TestGroup group(world, ranks, {.split = split, .overlap = overlap});
    const nn::TokenPlaces places = pieces_of_rank(sequences, {.ranks = ranks, .split = split}, world.rank());
    const at::Tensor own_x = part_of(x, places, 0.3), own_dy = part_of(dy, places);
    Outcome& mine = of_ranks[static_cast<size_t>(world.rank())];
    mine = pass(group.group.get(), places, own_x, own_dy, Keep::kAll);
    expect_close(testing::without_filler(mine.y, places), part_of(whole.y, places), "y", 2e-5);
    expect_close(testing::without_filler(mine.dx, places), part_of(whole.dx, places), "dx", 3e-5);
    for (const Keep keep : {Keep::kSelective, Keep::kFull}) {
      const Outcome again = pass(group.group.get(), places, own_x, own_dy, keep);
      EXPECT_TRUE(again.dx.equal(mine.dx));
      for (size_t i = 0; i < mine.gradients.size(); ++i) EXPECT_TRUE(again.gradients[i].equal(mine.gradients[i])) << i;
    }
  });
  expect_sums(of_ranks, whole);
}

// Lengths that pieces divide and do not, pieces of one token and of fewer than the convolution sees, chunks that end within pieces.
void check_all(const std::vector<TestSequences>& all) {
  for (const TestSequences& sequences : all)
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      check(sequences, 2, split, /*overlap=*/true);
      check(sequences, 3, split, /*overlap=*/false);
      check(sequences, 4, split, /*overlap=*/true);
    }
}

TEST(ContextStateSpace, OneDocumentIsThatOfOneRank) {
  check_all({{.length = 32, .documents = {{0}, {0}}}, {.length = 19, .documents = {{0}, {0}}}, {.length = 8, .documents = {{0}}},
             {.length = 5, .documents = {{0}}}});
}

// Borders at, before and behind those of pieces, within the convolution's reach, and documents of one token.
TEST(ContextStateSpace, PackedDocumentsAreThoseOfOneRank) {
  check_all({{.length = 32, .documents = {{0, 7, 8, 9, 17}, {0, 16, 30}}}, {.length = 19, .documents = {{0, 6, 15}, {0, 2}}},
             {.length = 8, .documents = {{0, 1, 4, 7}, {0}}}});
}

TEST(ContextStateSpace, ColumnsAndStatesAreGatheredOnceAPass) {
  constexpr int kRanks = 2;
  const TestSequences sequences{.length = 20, .documents = {{0, 3}, {0}}};
  run_ranks(kRanks, [&](comm::World& world) {
    TestGroup group(world, kRanks, {.split = ContextSplit::kZigzag});
    const nn::TokenPlaces places = pieces_of_rank(sequences, {.ranks = kRanks, .split = ContextSplit::kZigzag}, world.rank());
    const at::Tensor x = random("x", {2, places.index.size(1), kWidth});
    pass(group.group.get(), places, x, x, Keep::kAll);
    const int64_t pieces = 4, batch = 2, columns = batch * 3 * kSizes.convolved(), of_state = kSizes.head_size * kSizes.state;
    program::Ledger expected;
    const auto add = [&](const char* part, CallPhase phase, int64_t numel) {
      const program::CollectiveCall call{.collective = program::Collective::kAllGather, .algorithm = program::Algorithm::kDirect,
                                         .group = {0, 1}, .numel = pieces * numel, .element_size = 4};
      expected.add({.id = program::named_call("block").of_part(part).with(phase), .collective = call.collective, .axis = "cp",
                    .algorithm = call.algorithm},
                   program::payload(call), program::predicted_sends(call, world.rank()), 1);
    };
    add("ssm.columns", CallPhase::kForward, columns);
    add("ssm.states", CallPhase::kForward, batch * kSizes.heads * (of_state + 1));
    add("ssm.states", CallPhase::kBackward, batch * kSizes.heads * of_state);
    add("ssm.columns", CallPhase::kBackward, columns);
    const auto lines = program::Ledger::difference(expected, group.all->take_ledger());
    EXPECT_TRUE(lines.empty()) << join(lines, "\n");
  });
}

// Prompts that are cut in zigzag pieces, filled up behind their end or not, leave the state of one rank on every rank, and so does what follows.
TEST(ContextStateSpace, PromptsThatAreCutGoOnOnEveryRank) {
  for (const int64_t length : {16, 13, 9}) {
    SCOPED_TRACE(length);
    const StateSpaceParameters parameters(kSizes, kWidth);
    const auto alone = state_space_of(kSizes, parameters);
    const at::Tensor x = random("x", {2, length + 1, kWidth});
    const auto part = [&](int64_t begin, int64_t count) { return x.narrow(1, begin, count).contiguous(); };
    const nn::KvCacheLayer expected = alone->new_cache(2, length + 1, x.options());
    const std::vector<nn::CacheSpan> prompt = {{.slot = 1, .start = 0}, {.slot = 0, .start = 0}},
                                     next = {{.slot = 1, .start = length}, {.slot = 0, .start = length}};
    const at::Tensor prompts = alone->decode(part(0, length), expected, prompt);
    const nn::KvCacheLayer before = {.k = {}, .v = {}, .columns = expected.columns.clone(), .state = expected.state.clone()};
    const at::Tensor token = alone->decode(part(length, 1), expected, next);
    for (const int ranks : {2, 3, 4})
      run_ranks(ranks, [&](comm::World& world) {
        TestGroup group(world, ranks, {.split = ContextSplit::kZigzag});
        const TestSequences sequences{.length = length, .documents = {{0}, {0}}};
        const nn::TokenPlaces places = places_of(sequences, {.ranks = ranks, .split = ContextSplit::kZigzag}, world.rank());
        const auto branch = state_space_of(kSizes, parameters);
        nn::KvCacheLayer cache = branch->new_cache(2, length + 1, x.options());
        cache.pieces = make_piece_exchange(*group.group, program::named_call("block"), "ssm");
        nn::CachePart cut;
        cut.places = &places;
        std::vector<nn::CacheSpan> spans = prompt;
        for (nn::CacheSpan& span : spans) span.part = &cut;
        const at::Tensor y = branch->decode(part_of(part(0, length), places, 0.3), cache, spans);
        expect_close(testing::without_filler(y, places), part_of(prompts, places), "prompts", 2e-5);
        expect_close(cache.state, before.state, "state", 2e-5);
        expect_close(cache.columns, before.columns, "columns", 2e-5);
        expect_close(branch->decode(part(length, 1), cache, next), token, "the next token", 2e-5);
      });
  }
}

}  // namespace
}  // namespace lockstep::parallel
