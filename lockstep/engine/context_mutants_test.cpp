// A step of ranks that hold sequences in parts against one rank with whole ones, and the same comparison where a rank is told something
// wrong of its tokens: each fault is found.
#include <ATen/ops/logical_and.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/test_context.h"

namespace lockstep::engine {
namespace {

using config::ContextKind;
using config::ContextSplit;
using testing::ContextCase;
using testing::error_of;
using testing::layout_for;
using testing::train_context;

constexpr double kBound = 1e-5;

// 15 tokens: 4 pieces do not divide them.
ContextCase case_of(const std::string& preset, ContextKind kind, bool documents) {
  return {.base = {.preset = preset, .dp = 1, .micro_batch = 2, .seq_len = 15, .blocks = 2}, .kind = kind, .documents = documents};
}

// Made once for all layouts of a model and data.
const testing::Outcome& twin_of(const ContextCase& c) {
  static std::map<std::string, testing::Outcome> known;
  const auto [twin, fresh] = known.try_emplace(cat(c.base.preset, c.documents, c.base.dropout, c.window));
  if (fresh) twin->second = train_context(testing::twin_of(layout_for(c)));
  return twin->second;
}

using Change = std::function<void(nn::Microbatch&, nn::TokenPlaces&)>;  // of one rank's microbatch

// The error of the layout where `change` is done to the microbatches of `rank`; -1: to those of all.
double error_with(const ContextCase& c, const Change& change, int rank = -1) {
  const program::Layout layout = layout_for(c);
  const auto load = [&](const program::Layout& of, int own, int64_t step) {
    std::vector<nn::Microbatch> all = testing::parts_of_microbatches(of, own, step);
    for (nn::Microbatch& microbatch : all) {
      if (!change || (rank >= 0 && own != rank)) continue;
      auto places = std::make_shared<nn::TokenPlaces>(*microbatch.places);
      for (at::Tensor* tensor : {&places->positions, &places->index, &places->first_seen, &places->first_seen_of_places}) *tensor = tensor->clone();
      change(microbatch, *places);
      microbatch.places = std::move(places);
    }
    return all;
  };
  const testing::Outcome found = train_context(layout, {.check_traffic = true, .load = load});
  return error_of(found, twin_of(c));
}

std::vector<ContextCase> all_cases() {
  std::vector<ContextCase> cases;
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather})
      for (const bool documents : {false, true}) cases.push_back(case_of(preset, kind, documents));
  return cases;
}

TEST(ContextStep, IsThatOfOneRank) {
  for (ContextCase c : all_cases()) {
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      c.split = split;
      EXPECT_LE(error_with(c, {}), kBound) << testing::text_of(c);
    }
    c.cp = 3;
    c.base.dropout = 0.1;
    EXPECT_LE(error_with(c, {}), kBound) << testing::text_of(c);
    c.cp = 2;
    c.window = 4;  // pieces of 4 tokens and of 8: of both their ends travel
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      c.split = split;
      EXPECT_LE(error_with(c, {}), kBound) << testing::text_of(c);
    }
  }
}

// Every change is found with every kind, with documents and without.
void expect_found(const Change& change) {
  for (const ContextCase& c : all_cases()) EXPECT_GT(error_with(c, change), 100 * kBound) << testing::text_of(c);
}

// The next token of the one before a border is taken from what lies next to it in memory.
TEST(ContextMutants, LabelsRolledAtTheBorderOfAPiece) {
  expect_found([](nn::Microbatch& microbatch, nn::TokenPlaces& places) {
    microbatch.targets = microbatch.targets.clone();
    const int64_t here = microbatch.targets.size(1);
    for (int64_t row = 0; row < microbatch.targets.size(0); ++row)
      for (int64_t i = 0; i < here; ++i) {
        const int64_t next = (i + 1) % here;
        const int32_t* const index = places.index.data_ptr<int32_t>() + row * here;
        int64_t& target = microbatch.targets.data_ptr<int64_t>()[row * here + i];
        if (index[next] != index[i] + 1 && target >= 0) target = microbatch.tokens.data_ptr<int64_t>()[row * here + next];
      }
  });
}

void count_up(const at::Tensor& of) {  // [B, T]
  for (int64_t column = 0; column < of.size(1); ++column) of.select(1, column).fill_(column);
}

TEST(ContextMutants, PositionsFromTheLocalIndex) {
  expect_found([](nn::Microbatch&, nn::TokenPlaces& places) { count_up(places.positions); });
}

// As the rank with the first tokens has them. Of all_to_all the masks are those of whole sequences.
TEST(ContextMutants, MasksFromTheLocalIndex) {
  const auto local = [](nn::Microbatch&, nn::TokenPlaces& places) {
    count_up(places.index);
    places.first_seen.zero_();
  };
  for (const ContextCase& c : all_cases())
    if (c.kind != ContextKind::kAllToAll) {
      EXPECT_GT(error_with(c, local), 100 * kBound) << testing::text_of(c);
    }
}

// Each token counts for each rank: loss and gradients are divided by cp once more.
TEST(ContextMutants, TheMeanDividedByRanks) {
  expect_found([](nn::Microbatch& microbatch, nn::TokenPlaces&) { microbatch.valid_targets *= 2; });
}

// One rank's part alone, where all others are right.
TEST(ContextMutants, DocumentsThatSeeEachOther) {
  for (const ContextCase& c : all_cases())
    if (c.documents) {
      const auto all_seen = [](nn::Microbatch&, nn::TokenPlaces& places) {
        places.first_seen.zero_();
        places.first_seen_of_places.zero_();
      };
      EXPECT_GT(error_with(c, all_seen, 1), 100 * kBound) << testing::text_of(c);
    }
}

TEST(ContextMutants, PositionsThatAreNotReset) {
  for (const ContextCase& c : all_cases())
    if (c.documents) {
      const auto whole = [&](nn::Microbatch&, nn::TokenPlaces& places) { places.positions.copy_(places.index.clamp_max(c.base.seq_len - 1)); };
      // Rotary positions say how far tokens are apart: shifted for all tokens of a document they change nothing.
      const int rank = c.base.preset == "gpt2-test" ? -1 : 1;
      EXPECT_GT(error_with(c, whole, rank), 100 * kBound) << testing::text_of(c);
    }
}

// The last token of a document is asked for the first of the next one.
TEST(ContextMutants, ALossAcrossDocuments) {
  for (const ContextCase& c : all_cases())
    if (c.documents) {
      const auto counted = [](nn::Microbatch& microbatch, nn::TokenPlaces& places) {
        microbatch.targets = microbatch.targets.masked_fill(at::logical_and(microbatch.targets.lt(0), places.index.lt(places.length)), 1);
        microbatch.valid_targets = nn::count_valid(microbatch.targets);
      };
      EXPECT_GT(error_with(c, counted, 0), 100 * kBound) << testing::text_of(c);
    }
}

// A token that fills up behind the end and counts.
TEST(ContextMutants, ALossBehindTheEnd) {
  const auto counted = [](nn::Microbatch& microbatch, nn::TokenPlaces& places) {
    microbatch.targets = microbatch.targets.masked_fill(places.index.ge(places.length), 1);
    microbatch.valid_targets = nn::count_valid(microbatch.targets);
  };
  expect_found(counted);
}

// Masks of one rank that are those of another sequence.
TEST(ContextMutants, DropoutOfOtherTokens) {
  for (ContextCase c : {case_of("gpt2-test", ContextKind::kRing, false), case_of("gpt2-test", ContextKind::kAllToAll, true)}) {
    c.base.dropout = 0.1;
    EXPECT_LE(error_with(c, {}), kBound);
    EXPECT_GT(error_with(c, [](nn::Microbatch& microbatch, nn::TokenPlaces&) { ++microbatch.first_sample; }, 1), 100 * kBound);
  }
}

}  // namespace
}  // namespace lockstep::engine
