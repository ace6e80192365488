#include "lockstep/engine/activation_offload.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <optional>

namespace lockstep::engine {
namespace {

constexpr int64_t kSize = 1 << 14;

at::Tensor filled(float number) { return at::full({kSize}, number, at::kFloat); }

// Whether a tensor is still held by somebody.
using Watch = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

TEST(ActivationOffload, InputsComeBackAsTheyWere) {
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  for (int layer = 0; layer < 4; ++layer) offload.evict({layer, 0}, filled(static_cast<float>(layer)));
  for (int layer = 3; layer >= 0; --layer) {
    EXPECT_FALSE(offload.fetched({layer, 0}));
    offload.fetch({layer, 0});
    EXPECT_TRUE(offload.fetched({layer, 0}));
    EXPECT_TRUE(offload.take({layer, 0}).equal(filled(static_cast<float>(layer))));
  }
  EXPECT_EQ(copies.take_totals().bytes, 8 * kSize * 4);
}

// What the plan of memory counts on: one input on its way out while the next is made, not two.
TEST(ActivationOffload, AnEvictedInputIsFreeWithTheNextEvictOrFetch) {
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  std::optional<Watch> before;
  for (int layer = 0; layer < 3; ++layer) {
    at::Tensor input = filled(1);
    const Watch watch(input.getIntrusivePtr());
    offload.evict({layer, 0}, std::move(input));
    EXPECT_TRUE(!before || before->expired()) << layer;
    before = watch;
  }
  offload.fetch({0, 0});
  EXPECT_TRUE(before->expired());
  offload.clear();
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
    offload.fetch({layer, 0});
    EXPECT_TRUE(offload.take({layer, 0}).equal(filled(static_cast<float>(layer + 1))));
  }
  EXPECT_EQ(account->live(MemoryCategory::kHost), 0);
}

}  // namespace
}  // namespace lockstep::engine
