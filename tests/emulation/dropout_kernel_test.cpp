// Masks of dropout as a GPU draws them: those of the CPU.
#include <cmath>

#include "emulation/launches.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/dropout.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

struct Case {
  uint64_t first;
  int64_t n;
  double probability;
};

std::vector<uint8_t> drawn_by_kernel(const PhiloxStream& numbers, const Case& c, size_t away) {
  const Results results = in_every_order(
      [&](Buffers& buffers) {
        bool* const kept = buffers.output<bool>("kept", static_cast<size_t>(c.n));
        nn::cuda::launch_dropout_mask(
            nullptr, {.kept = kept, .n = c.n, .numbers = numbers, .first = c.first, .probability = c.probability});
      },
      away);
  return values_of<uint8_t>(results, "kept");
}

std::vector<uint8_t> drawn_by_host(const Case& c) {
  std::vector<float> numbers(static_cast<size_t>(c.n));
  RandomStream(5, "site").uniform(c.first, numbers);
  std::vector<uint8_t> kept;
  for (const float number : numbers) kept.push_back(number >= c.probability);
  return kept;
}

void expect_bits_of_host(const Case& c) {
  for (const size_t away : {size_t{0}, size_t{1}, size_t{4}})
    EXPECT_EQ(drawn_by_kernel(philox_stream(5, "site"), c, away), drawn_by_host(c))
        << c.n << " from " << c.first << ", probability " << c.probability;
}

TEST(DropoutKernel, AnyOffsetAndSize) {
  constexpr uint64_t kWide = uint64_t{1} << 32;
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{4}, uint64_t{1023}, kWide - 5, kWide,
                               kWide + 3, 4 * kWide - 3, 4 * kWide, (kWide << 8) + 2})
    for (const int64_t n : {1, 3, 4, 5, 7, 1024, 1031}) expect_bits_of_host({first, n, 0.3});
  // More than three blocks of four numbers a thread.
  for (const uint64_t first : {kWide - 4, kWide - 3})
    for (const int64_t n : {6000, 6001}) expect_bits_of_host({first, n, 0.1});
}

TEST(DropoutKernel, AnyProbability) {
  for (const double probability : {0.0, 1e-9, 0.1, 1.0 / 3, 0.5, 0.9, 1 - 1e-9}) expect_bits_of_host({8, 1000, probability});
  // Right at a number that is drawn, and beside it by less than a float can say.
  float number = 0;
  RandomStream(5, "site").uniform(13, {&number, 1});
  for (const double probability : {static_cast<double>(number), std::nextafter(number, 0.0), std::nextafter(static_cast<double>(number), 1.0)})
    expect_bits_of_host({8, 100, probability});
  EXPECT_EQ(drawn_by_host({13, 1, static_cast<double>(number)}), std::vector<uint8_t>{1});
  EXPECT_EQ(drawn_by_host({13, 1, std::nextafter(static_cast<double>(number), 1.0)}), std::vector<uint8_t>{0});
}

TEST(DropoutKernel, TheMaskOfALayer) {
  nn::Microbatch microbatch;
  microbatch.tokens = at::zeros({2, 5}, at::kLong);
  microbatch.step = 4;
  microbatch.first_sample = int64_t{1} << 30;  // element 5 * 2^30 * 6 is beyond 32 bits
  const nn::Dropout dropout({.probability = 0.3, .seed = 5, .site = "embed"});
  const at::Tensor mask = dropout.mask(microbatch, {2, 5, 6});
  const Case c{.first = (uint64_t{1} << 30) * 5 * 6, .n = 60, .probability = 0.3};
  const std::vector<uint8_t> drawn = drawn_by_kernel(philox_stream(5, cat("dropout/step ", 4, "/embed")), c, 0);
  const bool* const kept = mask.const_data_ptr<bool>();
  EXPECT_EQ(drawn, std::vector<uint8_t>(kept, kept + 60));
}

TEST(DropoutKernel, NothingIsNothing) { nn::cuda::launch_dropout_mask(nullptr, {}); }

}  // namespace
}  // namespace lockstep::emulation
