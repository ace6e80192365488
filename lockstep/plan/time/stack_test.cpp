#include "lockstep/plan/time/stack.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::plan {
namespace {

constexpr Kernels kAllKernels[] = {Kernels::kUnfused, Kernels::kFlash, Kernels::kCurrent};

TEST(Stack, EveryConstantOfEveryDeviceHasAnOriginAndAValue) {
  for (const std::string& name : device_names())
    for (const Kernels kernels : kAllKernels) {
      const Stack stack = stack_of(device_kind(name), kernels);
      EXPECT_FALSE(stack.name.empty());
      for (const auto& [constant, field] : stack_constants()) {
        ASSERT_TRUE(stack.origins.contains(constant)) << name << " " << constant;
        EXPECT_FALSE(stack.origins.at(constant).empty()) << name << " " << constant;
        EXPECT_GE(stack.*field, 0) << name << " " << constant;
      }
      for (const double share : {stack.product_cap, stack.fp8_cap, stack.memory_share, stack.attention_forward, stack.attention_backward, stack.network_share}) {
        EXPECT_GT(share, 0) << name;
        EXPECT_LE(share, 1) << name;
      }
    }
}

TEST(Stack, ConstantsHaveNamesAndFieldsOfTheirOwn) {
  std::set<std::string> names;
  Stack stack;
  double next = 1;
  for (const auto& [name, field] : stack_constants()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    stack.*field = next++;
  }
  next = 1;
  for (const auto& [name, field] : stack_constants()) EXPECT_EQ(stack.*field, next++) << name << " shares its field";
  // Whatever in the struct is a number is one of them.
  const size_t others = sizeof(std::string) + sizeof(double) + sizeof(std::map<std::string, std::string>);
  EXPECT_EQ(sizeof(Stack), stack_constants().size() * sizeof(double) + others);
}

// The best shapes that anybody measured on a device (stas00/ml-engineering, MAMF): 0.869 of the peak on A100, 0.803 on H100. Others reach less.
TEST(Stack, ProductsStayBelowTheBestMeasuredShapes) {
  EXPECT_NEAR(stack_of(device_kind("a100"), Kernels::kUnfused).product_cap, 0.869, 0.03);
  EXPECT_LT(stack_of(device_kind("h100"), Kernels::kCurrent).product_cap, 0.803);
  EXPECT_LT(stack_of(device_kind("b200"), Kernels::kCurrent).product_cap, 0.79);
  EXPECT_LT(stack_of(device_kind("h100"), Kernels::kCurrent).fp8_cap, 0.709);
}

// On H100 models reach 0.725 of the peak where the best shape has 0.803; nothing was fitted on MI300X, whose best has 0.514.
TEST(Stack, DevicesWithoutRunsReachTheSameShareOfTheirBestShape) {
  const auto cap = [](const char* device) { return stack_of(device_kind(device), Kernels::kCurrent).product_cap; };
  EXPECT_NEAR(cap("mi300x"), 0.725 * 0.514 / 0.803, 1e-12);
  EXPECT_NEAR(cap("mi325x") / cap("mi300x"), 0.604 / 0.514, 1e-12);
  EXPECT_NEAR(cap("gh200") / cap("h100"), 0.838 / 0.803, 1e-12);
  EXPECT_NEAR(cap("a100-pcie") / cap("a100"), 0.811 / 0.869, 1e-12);
  EXPECT_NEAR(stack_of(device_kind("h200"), Kernels::kCurrent).fp8_cap, 0.692 * 0.734 / 0.709, 1e-12);
  EXPECT_EQ(cap("h200"), cap("h100"));
  EXPECT_EQ(cap("a100-40"), cap("a100"));
}

TEST(Stack, LessPowerForTheSamePeakIsSlower) {
  const Stack usual = stack_of(device_kind("h100"), Kernels::kFlash), capped = stack_of(device_kind("h100-500w"), Kernels::kFlash);
  EXPECT_NEAR(capped.product_cap / usual.product_cap, 0.877, 0.001);  // (500 / 700) ^ 0.39
  EXPECT_LT(capped.attention_forward, usual.attention_forward);
  EXPECT_EQ(stack_of(device_kind("h200"), Kernels::kFlash).product_cap, usual.product_cap);
  EXPECT_EQ(stack_of(device_kind("h20"), Kernels::kFlash).product_cap, usual.product_cap);  // its peak is lower
}

TEST(Stack, Eras) {
  EXPECT_EQ(usual_kernels(device_kind("v100")), Kernels::kUnfused);
  EXPECT_EQ(usual_kernels(device_kind("a100")), Kernels::kCurrent);
  const Stack old = stack_of(device_kind("a100"), Kernels::kUnfused), now = stack_of(device_kind("a100"), Kernels::kCurrent);
  EXPECT_EQ(old.product_cap, now.product_cap);  // of the hardware
  EXPECT_EQ(old.tensor_exposed, 1);
  EXPECT_LT(now.tensor_exposed, 0.5);
  EXPECT_EQ(old.kernels, Kernels::kUnfused);
  EXPECT_EQ(old.name, "Ampere, unfused kernels");
}

TEST(Stack, TextHasEveryConstantWithItsOrigin) {
  const Stack stack = stack_of(device_kind("h100"), Kernels::kCurrent);
  const std::string text = stack_text(stack);
  for (const auto& [name, field] : stack_constants()) {
    EXPECT_NE(text.find("  " + name + " "), std::string::npos) << name;
    EXPECT_NE(text.find(stack.origins.at(name)), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace lockstep::plan
