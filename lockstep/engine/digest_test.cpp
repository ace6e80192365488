#include "lockstep/engine/digest.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>

namespace lockstep::engine {
namespace {

using Digest = std::function<int64_t(const at::Tensor&)>;

int64_t on_cpu(const at::Tensor& tensor) { return digests({tensor})[0]; }
int64_t as_on_device(const at::Tensor& tensor) { return device_digest(tensor).item<int64_t>(); }

at::Tensor flipped(const at::Tensor& tensor, int64_t byte, int bit) {
  at::Tensor other = tensor.clone();
  static_cast<uint8_t*>(other.data_ptr())[byte] ^= static_cast<uint8_t>(1 << bit);
  return other;
}

class EachDigest : public ::testing::TestWithParam<Digest> {};

TEST_P(EachDigest, SeesEveryBitAndThePlaces) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t numel : {1, 2, 1000, 1024, 5000, 70'000}) {
      const at::Tensor values = at::arange(1, numel + 1).mul(-0.37).to(type);  // its ends differ, in bf16 too
      const int64_t digest = GetParam()(values);
      EXPECT_EQ(GetParam()(values.clone()), digest);
      const auto bytes = static_cast<int64_t>(values.nbytes());
      for (const int64_t byte : {int64_t{0}, bytes / 3, bytes / 2, bytes - 1})
        for (const int bit : {0, 7}) EXPECT_NE(GetParam()(flipped(values, byte, bit)), digest) << numel << " " << byte;
      if (numel < 2) continue;
      at::Tensor swapped = values.clone();
      swapped[0].copy_(values[numel - 1]);
      swapped[numel - 1].copy_(values[0]);
      EXPECT_NE(GetParam()(swapped), digest) << numel;
      EXPECT_NE(GetParam()(values.narrow(0, 0, numel - 1).contiguous()), digest) << numel;
    }
}

INSTANTIATE_TEST_SUITE_P(, EachDigest, ::testing::Values(on_cpu, as_on_device));

TEST(Digest, OfALargeTensorSeesEachPiece) {
  const at::Tensor values = at::arange(10'000'000).to(at::kFloat);  // three pieces
  const int64_t digest = as_on_device(values);
  for (const int64_t byte : {int64_t{0}, int64_t{5'000'000} * 4, int64_t{9'999'999} * 4})
    EXPECT_NE(as_on_device(flipped(values, byte, 3)), digest);
}

TEST(Digest, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor values = at::randn({3'000'000});
  at::set_num_threads(1);
  const int64_t digest = on_cpu(values);
  at::set_num_threads(2);
  EXPECT_EQ(on_cpu(values), digest);
  EXPECT_EQ(digests({values.narrow(0, 0, 5), values})[1], digest);
}

}  // namespace
}  // namespace lockstep::engine
