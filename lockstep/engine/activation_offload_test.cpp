#include "lockstep/engine/activation_offload.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "lockstep/engine/test_offload.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kSize = 1 << 14;

at::Tensor filled(float number) { return at::full({kSize}, number, at::kFloat); }

TEST(ActivationOffload, InputsComeBackAsTheyWere) {
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  for (int layer = 0; layer < 4; ++layer) offload.evict({layer, 0}, filled(static_cast<float>(layer)));
  for (int layer = 3; layer >= 0; --layer) {
    EXPECT_FALSE(offload.fetched({layer, 0}));
    offload.fetch({layer, 0}).order_after();
    EXPECT_TRUE(offload.fetched({layer, 0}));
    EXPECT_TRUE(offload.take({layer, 0}).equal(filled(static_cast<float>(layer))));
  }
  EXPECT_EQ(copies.take_totals().bytes, 8 * kSize * 4);
}

TEST(ActivationOffload, AnEvictedInputIsFreeWithTheNextEvictOrFetch) {
  testing::expect_evicted_inputs_are_free([] { return filled(1); });
}

TEST(ActivationOffload, OnTheHostEachInputHasMemoryOfTheHostsAccountOnlyWhileItIsThere) {
  install_memory_tracking();
  const auto account = std::make_shared<MemoryAccount>();
  CopyQueue copies;
  ActivationOffload offload(copies, account);
  offload.evict({0, 0}, filled(1));
  offload.evict({1, 0}, filled(2));
  EXPECT_EQ(account->live(MemoryCategory::kHost), 2 * kSize * 4);
  for (int layer = 0; layer < 2; ++layer) {
    offload.fetch({layer, 0}).order_after();
    EXPECT_TRUE(offload.take({layer, 0}).equal(filled(static_cast<float>(layer + 1))));
  }
  EXPECT_EQ(account->live(MemoryCategory::kHost), 0);
}

}  // namespace
}  // namespace lockstep::engine
