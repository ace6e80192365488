#include "lockstep/train/batches.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

// Token i of the stream is i.
data::Sampler counting(int32_t num_tokens, int64_t seq_len) {
  const auto prefix = std::filesystem::path(::testing::TempDir()) / cat("lockstep-batches-", getpid());
  data::TokenFileWriter writer(prefix, 100000);
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  std::iota(ids.begin(), ids.end(), 0);
  writer.add_document(ids);
  writer.finish();
  return data::Sampler(std::make_shared<data::TokenFile>(prefix), {.seq_len = seq_len, .shuffle = false});
}

TEST(Batches, TargetsAreTheNextTokens) {
  const data::Sampler sampler = counting(101, 5);
  const nn::Microbatch microbatch =
      load_microbatch(sampler, {.first = 3, .count = 2, .step = 7, .first_in_batch = 11}, at::kCPU);
  EXPECT_EQ(microbatch.step, 7);
  EXPECT_EQ(microbatch.first_sample, 11);
  EXPECT_EQ(microbatch.valid_targets, 10);
  ASSERT_EQ(microbatch.tokens.sizes().vec(), (std::vector<int64_t>{2, 5}));
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t column = 0; column < 5; ++column) {
      const int64_t token = (3 + row) * 5 + column;
      EXPECT_EQ(microbatch.tokens.const_data_ptr<int64_t>()[row * 5 + column], token);
      EXPECT_EQ(microbatch.targets.const_data_ptr<int64_t>()[row * 5 + column], token + 1);
    }
}

// What layers with experts weigh their losses by.
TEST(Batches, SequencesKnowTheirValidTargetsWhereThereAreExperts) {
  const data::Sampler sampler = counting(101, 5);
  program::Layout layout{.model = {}, .mesh = {}, .global_batch = 4, .micro_batch = 2, .seq_len = 5};
  for (const nn::Microbatch& microbatch : load_step(sampler, layout, 0, {}, at::kCPU)) EXPECT_FALSE(microbatch.sequence_targets.defined());
  layout.model.experts.count = 2;
  const std::vector<nn::Microbatch> microbatches = load_step(sampler, layout, 0, {}, at::kCPU);
  ASSERT_EQ(microbatches.size(), 2u);
  for (const nn::Microbatch& microbatch : microbatches)
    EXPECT_TRUE(microbatch.sequence_targets.equal(at::full({2}, 5.0, at::kDouble)));
}

}  // namespace
}  // namespace lockstep::train
