// A step of state spaces and hybrids over ranks that hold sequences in parts against one rank with whole ones, and the same comparison where
// a rank is told something wrong of where documents begin: each fault is found.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
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

ContextCase case_of(const std::string& preset, ContextSplit split, bool documents) {
  ContextCase c{.base = {.preset = preset, .dp = 1, .micro_batch = 2, .seq_len = 24}, .split = split, .documents = documents};
  if (preset == "mamba2-test") c.base.blocks = 2;
  return c;
}

std::vector<ContextCase> cases_of(bool documents) {
  std::vector<ContextCase> cases;
  for (const char* preset : {"mamba2-test", "hybrid-test"})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) cases.push_back(case_of(preset, split, documents));
  return cases;
}

// Made once for all layouts of a model and data.
const testing::Outcome& twin_of(const ContextCase& c) {
  static std::map<std::string, testing::Outcome> known;
  const auto [twin, fresh] = known.try_emplace(cat(c.base.preset, c.documents));
  if (fresh) twin->second = train_context(testing::twin_of(layout_for(c)));
  return twin->second;
}

using Change = std::function<void(nn::TokenPlaces&)>;  // of what a rank is told

double error_with(const ContextCase& c, const Change& change) {
  const auto load = [&](const program::Layout& of, int own, int64_t step) {
    std::vector<nn::Microbatch> all = testing::parts_of_microbatches(of, own, step);
    for (nn::Microbatch& microbatch : all) {
      if (!change) continue;
      auto places = std::make_shared<nn::TokenPlaces>(*microbatch.places);
      for (at::Tensor* tensor : {&places->first_seen, &places->first_seen_of_places}) *tensor = tensor->clone();
      change(*places);
      microbatch.places = std::move(places);
    }
    return all;
  };
  return error_of(train_context(layout_for(c), {.check_traffic = true, .load = load}), twin_of(c));
}

TEST(StateSpaceStep, IsThatOfOneRank) {
  for (const bool documents : {false, true})
    for (const ContextCase& c : cases_of(documents)) EXPECT_LE(error_with(c, {}), kBound) << testing::text_of(c);
}

// The state goes on over the border of a document.
TEST(StateSpaceMutants, AStateThatIsNotReset) {
  const auto one_document = [](nn::TokenPlaces& places) {
    places.first_seen.zero_();
    places.first_seen_of_places.zero_();
  };
  for (const ContextCase& c : cases_of(true)) EXPECT_GT(error_with(c, one_document), 100 * kBound) << testing::text_of(c);
}

// It is reset where the piece of a rank begins.
TEST(StateSpaceMutants, AStateThatIsResetAtTheBorderOfAPiece) {
  const auto at_borders = [](nn::TokenPlaces& places) {
    const int64_t here = places.index.size(1);
    for (int64_t row = 0; row < places.index.size(0); ++row) {
      const int32_t* const index = places.index.data_ptr<int32_t>() + row * here;
      int32_t* const first = places.first_seen.data_ptr<int32_t>() + row * here;
      int32_t begin = index[0];
      for (int64_t i = 0; i < here; ++i) {
        if (i > 0 && index[i] != index[i - 1] + 1) begin = index[i];
        if (first[i] < begin) first[i] = begin;
      }
    }
  };
  for (const bool documents : {false, true})
    for (const ContextCase& c : cases_of(documents)) EXPECT_GT(error_with(c, at_borders), 100 * kBound) << testing::text_of(c);
}

}  // namespace
}  // namespace lockstep::engine
