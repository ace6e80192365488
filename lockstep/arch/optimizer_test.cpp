#include "lockstep/arch/optimizer.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"

namespace lockstep::arch {
namespace {

// Kingma and Ba 2015: two running means. Kept in fp32 beside the fp32 value.
TEST(Optimizer, AdamWKeepsTwoFp32Slots) {
  const OptimizerSpec& adamw = optimizer_spec();
  EXPECT_EQ(adamw.id, "adamw");
  EXPECT_EQ(adamw.slot_bytes(), 4 + 4);
  EXPECT_FALSE(adamw.whole_matrix);
  // The keys of checkpoints, in their order.
  ASSERT_EQ(adamw.slots.size(), 2U);
  EXPECT_EQ(adamw.slots[0].name, "exp_avg");
  EXPECT_EQ(adamw.slots[1].name, "exp_avg_sq");
}

TEST(Optimizer, MuonKeepsOneSlotAndNeedsWholeMatrices) {
  const OptimizerSpec& muon = optimizer_spec("muon");
  EXPECT_EQ(muon.slot_bytes(), 4);
  EXPECT_TRUE(muon.whole_matrix);
}

// A router's bias is what its rate makes of signs: no state, and no rule.
TEST(Optimizer, TheBiasUpdateKeepsNothingAndIsNobodysChoice) {
  const OptimizerSpec& balance = optimizer_spec("balance");
  EXPECT_EQ(balance.slot_bytes(), 0);
  EXPECT_TRUE(balance.fixed);
  EXPECT_FALSE(balance.whole_matrix);
  EXPECT_FALSE(optimizer_spec().fixed || optimizer_spec("muon").fixed);
}

TEST(Optimizer, BytesAreThoseOfTheSlotsTypes) {
  const OptimizerSpec spec{.id = "test",
                           .slots_text = "both",
                           .slots = {{.name = "a", .text = "a", .dtype = config::Precision::kBf16}, {.name = "b", .text = "b"}}};
  EXPECT_EQ(spec.slot_bytes(), 2 + 4);
}

// The key "optim.master" is that of the fp32 values.
TEST(Optimizer, NoTwoKeysOfAParameterAreTheSame) {
  std::set<std::string_view> ids;
  for (const OptimizerSpec& spec : optimizer_specs()) {
    EXPECT_TRUE(ids.insert(spec.id).second) << spec.id;
    std::set<std::string_view> names = {"", "master"};
    for (const StateSlot& slot : spec.slots) EXPECT_TRUE(names.insert(slot.name).second) << spec.id << " " << slot.name;
  }
}

TEST(Optimizer, WhatIsNotRegisteredIsRefused) {
  EXPECT_THROW(optimizer_spec("sgd"), InternalError);
}

}  // namespace
}  // namespace lockstep::arch
