#include "lockstep/plan/time/product_seconds.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/plan/time/test_times.h"

namespace lockstep::plan {
namespace {

using namespace test_times;

TEST(ProductSeconds, LargeOnesReachTheCap) {
  Stack stack = ideal_stack();
  stack.product_cap = 0.8;
  stack.launch = 1e-6;
  const DeviceKind device = ideal_device();
  EXPECT_DOUBLE_EQ(ProductSeconds(device, stack).of({.m = 1000, .n = 2000, .k = 500}, ProductType::kBf16), 2e9 / (1e12 * 0.8) + 1e-6);
  EXPECT_DOUBLE_EQ(ProductSeconds(device, stack, nullptr, 0.5).of({.m = 1000, .n = 2000, .k = 500}, ProductType::kBf16), 2e9 / (1e12 * 0.4) + 1e-6);
}

TEST(ProductSeconds, LittleDepthTakesLonger) {
  Stack stack = ideal_stack();
  stack.product_depth = 400;
  const DeviceKind device = ideal_device();
  EXPECT_DOUBLE_EQ(ProductSeconds(device, stack).of({.m = 1000, .n = 1000, .k = 400}, ProductType::kBf16), 2 * 0.8e9 / 1e12);
}

// 110 tiles of 128 x 256 on 100 processors: two waves of which 110 of 200 tiles are there.
TEST(ProductSeconds, TilesThatDoNotFillTheLastWave) {
  DeviceKind device = ideal_device();
  device.processors = 100;
  const Stack stack = ideal_stack();
  const ProductSeconds products(device, stack);
  const ProductShape shape{.m = 10 * 128, .n = 11 * 256, .k = 64};
  EXPECT_NEAR(products.of(shape, ProductType::kBf16), shape.flops() / 1e12 / std::sqrt(110.0 / 200), 1e-15);
  // Of several in one launch all tiles count together.
  const ProductShape grouped{.m = 128, .n = 256, .k = 64, .count = 110};
  EXPECT_NEAR(products.of(grouped, ProductType::kBf16), grouped.flops() / 1e12 / std::sqrt(110.0 / 200), 1e-15);
}

TEST(ProductSeconds, FewRowsWaitForMemory) {
  DeviceKind device = ideal_device();
  device.memory_bandwidth = 1e9;
  Stack stack = ideal_stack();
  stack.memory_share = 0.5;
  const double bytes = 2.0 * (1 * 4000 + 4000 * 4000) + 2.0 * 1 * 4000;
  EXPECT_DOUBLE_EQ(ProductSeconds(device, stack).of({.m = 1, .n = 4000, .k = 4000}, ProductType::kBf16), bytes / 0.5e9);
}

TEST(ProductSeconds, Fp8HasItsOwnPeakAndPaysForCasts) {
  DeviceKind device = ideal_device();
  device.flops_fp8 = 4e12;
  device.memory_bandwidth = 1e15;
  Stack stack = ideal_stack();
  stack.cast_bytes = 4;
  const ProductSeconds products(device, stack);
  EXPECT_DOUBLE_EQ(products.of({.m = 1000, .n = 1000, .k = 1000}, ProductType::kFp8, 1e6), 2e9 / 4e12 + 4e6 / 1e15);
  device.flops_fp8 = 0;
  EXPECT_THROW(products.of({.m = 1000, .n = 1000, .k = 1000}, ProductType::kFp8), ConfigError);
}

TEST(ProductTable, ReplacesTheFormulaForItsShapes) {
  const ProductTable table = ProductTable::parse(Json::parse(R"({"host": "any", "products": [
      {"device": "h100", "m": 4096, "n": 12288, "k": 4096, "dtype": "bf16", "seconds": 6.5e-4},
      {"device": "ideal device", "m": 128, "n": 64, "k": 32, "count": 8, "dtype": "fp32", "seconds": 1e-5}]})"),
                                                 "products.json");
  const Stack stack = ideal_stack();
  const DeviceKind device = ideal_device();
  const ProductSeconds ideal(device, stack, &table), h100(device_kind("h100"), stack, &table);
  EXPECT_DOUBLE_EQ(h100.of({.m = 4096, .n = 12288, .k = 4096}, ProductType::kBf16), 6.5e-4);
  EXPECT_NE(h100.of({.m = 4096, .n = 12288, .k = 4097}, ProductType::kBf16), 6.5e-4);
  EXPECT_NE(h100.of({.m = 4096, .n = 12288, .k = 4096}, ProductType::kFp8), 6.5e-4);
  EXPECT_DOUBLE_EQ(ideal.of({.m = 128, .n = 64, .k = 32, .count = 8}, ProductType::kFp32), 1e-5);
  EXPECT_NE(ideal.of({.m = 4096, .n = 12288, .k = 4096}, ProductType::kBf16), 6.5e-4);
}

TEST(ProductTable, RefusesWhatItCannotRead) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      ProductTable::parse(Json::parse(text), "products.json");
    } catch (const DataError& error) {
      EXPECT_EQ(error.message().code, "LS1262");
      EXPECT_EQ(error.message().where, "products.json");
      return error.message().what;
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("[]"), "no list \"products\"");
  EXPECT_EQ(refusal(R"({"products": [{"device": "h100", "m": 1, "n": 1, "k": 1, "dtype": "bf16", "seconds": 1}, 3]})"), "products[1]: no object");
  EXPECT_EQ(refusal(R"({"products": [{"device": "h100", "m": 1.5, "n": 1, "k": 1, "dtype": "bf16", "seconds": 1}]})"),
            "products[0]: \"m\" is no whole number above 0");
  EXPECT_EQ(refusal(R"({"products": [{"device": "h100", "m": 1, "n": 1, "k": 1, "dtype": "int8", "seconds": 1}]})"),
            "products[0]: dtype \"int8\" is none of fp32, bf16, fp8");
  EXPECT_EQ(refusal(R"({"products": [{"device": "h100", "m": 1, "n": 1, "k": 1, "dtype": "bf16", "seconds": 0}]})"),
            "products[0]: \"seconds\" is no number above 0");
}

}  // namespace
}  // namespace lockstep::plan
