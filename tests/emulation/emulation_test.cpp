// The emulation itself: what it gives threads, and that it finds what is wrong in a kernel.
#include "emulation.h"

#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "guarded.h"
#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::emulation {
namespace {

using nn::cuda::launch;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What is told of the launch; empty: nothing.
template <typename... Parameters, typename... Arguments>
std::string told(dim3 blocks, dim3 threads, void (*kernel)(Parameters...), Arguments... arguments) {
  try {
    launch("kernel", {nullptr, blocks, threads}, kernel, arguments...);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::vector<Order> orders() {
  std::vector<Order> all;
  for (const bool ahead : {false, true})
    for (const Order& order : {Order{Order::kAscending, 0}, Order{Order::kDescending, 0}, Order{Order::kShuffled, 1}})
      all.push_back({order.kind, order.seed, ahead});
  return all;
}

// A buffer of n floats 0, 1, 2, ...
struct Floats : Guarded {
  Floats(const char* name, size_t n, Options options = {}) : Guarded(name, n * sizeof(float), options) {
    for (size_t i = 0; i < n; ++i) (*this)[i] = static_cast<float>(i);
  }
  float* data() const { return reinterpret_cast<float*>(Guarded::data()); }
  float& operator[](size_t i) const { return data()[i]; }
};

// The bits that `run` leaves in n floats, once for each order.
template <typename Run>
std::vector<std::vector<std::byte>> bits_in_orders(size_t n, const Run& run) {
  std::vector<std::vector<std::byte>> all;
  for (const Order& order : orders()) {
    set_order(order);
    const Floats out("out", n);
    run(out.data());
    const std::byte* const bytes = static_cast<const Guarded&>(out).data();
    all.emplace_back(bytes, bytes + out.size());
  }
  set_order({});
  return all;
}
bool all_alike(const std::vector<std::vector<std::byte>>& results) {
  return std::all_of(results.begin(), results.end(), [&](const auto& bits) { return bits == results[0]; });
}

__global__ void write_place(unsigned* out) {
  const dim3 all(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z);
  const dim3 at(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
                blockIdx.z * blockDim.z + threadIdx.z);
  out[(at.z * all.y + at.y) * all.x + at.x] += 1 + 7 * at.x + 100 * at.y + 1000 * at.z;
}

TEST(Emulation, EveryThreadRunsOnceInItsPlace) {
  for (const Order& order : orders()) {
    set_order(order);
    std::vector<unsigned> out(2 * 3 * 2 * 4 * 3 * 2);
    EXPECT_EQ(told(dim3(2, 3, 2), dim3(4, 3, 2), write_place, out.data()), "");
    for (unsigned z = 0; z < 4; ++z)
      for (unsigned y = 0; y < 9; ++y)
        for (unsigned x = 0; x < 8; ++x) EXPECT_EQ(out[(z * 9 + y) * 8 + x], 1 + 7 * x + 100 * y + 1000 * z);
  }
  set_order({});
}

template <bool kWithBarrier>
__global__ void reverse(float* out) {
  LOCKSTEP_SHARED(float[96], values);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (kWithBarrier) __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

TEST(Emulation, AMissingBarrierShows) {
  const auto right = bits_in_orders(96, [](float* out) { EXPECT_EQ(told(1, 96, reverse<true>, out), ""); });
  EXPECT_TRUE(all_alike(right));
  const auto wrong = bits_in_orders(96, [](float* out) { EXPECT_EQ(told(1, 96, reverse<false>, out), ""); });
  EXPECT_FALSE(all_alike(wrong));
  Floats out("out", 96);
  told(1, 96, reverse<true>, out.data());
  for (size_t i = 0; i < 96; ++i) EXPECT_EQ(out[i], static_cast<float>(95 - i));
}

// The second sum writes where a slow warp may still read the first.
template <bool kWithBarrier>
__global__ void two_sums(float* out) {
  LOCKSTEP_SHARED(float[3], of_warp);
  float total = static_cast<float>(threadIdx.x);
  for (int sum = 0; sum < 2; ++sum) {
    for (int step = 16; step > 0; step /= 2) total += __shfl_down_sync(0xffffffffu, total, step);
    if constexpr (kWithBarrier) __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
    __syncthreads();
    total = of_warp[0] + of_warp[1] + of_warp[2];
  }
  out[threadIdx.x] = total;
}

TEST(Emulation, AWarpThatRunsAheadShows) {
  EXPECT_TRUE(all_alike(bits_in_orders(96, [](float* out) { EXPECT_EQ(told(1, 96, two_sums<true>, out), ""); })));
  EXPECT_FALSE(all_alike(bits_in_orders(96, [](float* out) { EXPECT_EQ(told(1, 96, two_sums<false>, out), ""); })));
}

__global__ void read_uninitialised(float* out) {
  LOCKSTEP_SHARED(float[32], values);
  if (blockIdx.x == 0) values[threadIdx.x] = 1;  // the blocks behind it must not see that
  out[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
}

TEST(Emulation, SharedMemoryThatNobodyWroteIsNaN) {
  Floats out("out", 32 * 4);
  told(4, 32, read_uninitialised, out.data());
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(out[i]), i >= 32) << i;
}

__global__ void barrier_of_half() {
  if (threadIdx.x < 16) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void barriers_in_a_loop(int odd) {
  for (int i = 0; i < 3 + (static_cast<int>(threadIdx.x) == odd); ++i) __syncthreads();
}

TEST(Emulation, DivergentBarriersAreNamed) {
  EXPECT_THAT(told(1, 64, barrier_of_half),
              AllOf(StartsWith("kernel: block (0, 0, 0), thread (0, 0, 0) waits at the barrier emulation_test.cpp:"),
                    EndsWith(" for thread (16, 0, 0), which has ended")));
  EXPECT_THAT(told(1, 64, two_barriers), HasSubstr(" for thread (16, 0, 0), which waits at the barrier emulation_test.cpp:"));
  EXPECT_EQ(told(2, 64, barriers_in_a_loop, -1), "");
  EXPECT_THAT(told(2, 64, barriers_in_a_loop, 5),
              AllOf(StartsWith("kernel: block (0, 0, 0), thread (5, 0, 0) waits"), EndsWith("(0, 0, 0), which has ended")));
}

__global__ void shift(const float* in, float* out, int by) {
  out[threadIdx.x] = in[static_cast<int>(threadIdx.x) + by];
}
__global__ void write_shifted(float* out, int by) { out[static_cast<int>(threadIdx.x) + by] = 1; }

TEST(Emulation, MemoryBeyondABufferIsNamed) {
  Floats in("in", 32), out("out", 32);
  EXPECT_EQ(told(1, 32, shift, in.data(), out.data(), 0), "");
  EXPECT_EQ(told(1, 32, shift, in.data(), out.data(), 1),
            "kernel: block (0, 0, 0), thread (31, 0, 0) reads byte 128 of `in`, which has 128");
  EXPECT_EQ(told(1, 32, write_shifted, out.data(), 2),
            "kernel: block (0, 0, 0), thread (30, 0, 0) writes byte 128 of `out`, which has 128");
  Floats before("before", 32, {.side = Guarded::kBefore});
  EXPECT_EQ(told(3, 32, write_shifted, before.data(), -1),
            "kernel: block (0, 0, 0), thread (0, 0, 0) writes byte -4 of `before`, which has 128");
  EXPECT_THAT(told(1, 1, write_shifted, static_cast<float*>(nullptr), 0), EndsWith("writes an address in no buffer"));
  // The thread that goes wrong leaves nothing behind.
  EXPECT_EQ(told(1, 32, shift, in.data(), out.data(), 0), "");
}

TEST(Emulation, WhatLiesAroundABufferIsWatched) {
  Floats out("out", 32), apart("apart", 32, {.side = Guarded::kBehind, .away = 4});
  EXPECT_EQ(out.damage(), "");
  EXPECT_EQ(told(1, 32, write_shifted, out.data(), -1), "");
  EXPECT_EQ(out.damage(), "byte -4 of `out`, which has 128, was written");
  EXPECT_NE(reinterpret_cast<uintptr_t>(apart.data()) % 16, 0u);
  EXPECT_EQ(told(1, 32, write_shifted, apart.data(), 1), "");
  EXPECT_EQ(apart.damage(), "byte 128 of `apart`, which has 128, was written");
}

TEST(Emulation, WhatMayOnlyBeReadIsNotWritten) {
  Floats in("in", 32);
  in.make_read_only();
  EXPECT_EQ(told(1, 32, write_shifted, in.data(), 0),
            "kernel: block (0, 0, 0), thread (0, 0, 0) writes byte 0 of `in`, which has 128");
}

__global__ void four_at_once(const float* in, float* out) {
  nn::cuda::store<float, 4>(out, threadIdx.x, nn::cuda::load<float, 4>(in, threadIdx.x));
}

TEST(Emulation, AddressesThatAreNotAlignedAreNamed) {
  Floats in("in", 32), out("out", 32);
  EXPECT_EQ(told(1, 8, four_at_once, in.data(), out.data()), "");
  EXPECT_EQ(told(1, 7, four_at_once, in.data() + 1, out.data()),
            "kernel: block (0, 0, 0), thread (0, 0, 0) reads or writes at an address that is not aligned");
  EXPECT_THAT(told(1, 7, four_at_once, in.data(), out.data() + 2), EndsWith("not aligned"));
}

__global__ void shared_beyond(int at) {
  LOCKSTEP_SHARED(float[32], values);
  volatile float* const watched = values;
  watched[at] = 1;
}

TEST(Emulation, SharedMemoryBeyondAnArrayIsNamed) {
  EXPECT_EQ(told(2, 1, shared_beyond, 31), "");
  EXPECT_THAT(told(2, 1, shared_beyond, 32), EndsWith("writes byte 128 of `values`, which has 128"));
  EXPECT_THAT(told(2, 1, shared_beyond, -1), EndsWith("writes byte -4 of `values`, which has 128"));
}

__global__ void sum_of_warp(float* out) {
  float value = static_cast<float>(1 + threadIdx.x);
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = value;
}
__global__ void halves(float* out, int width) {
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, static_cast<float>(threadIdx.x), 3, width);
}
__global__ void one_lane_gone(float* out) {
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 1);
}
__global__ void one_lane_at_a_barrier(float* out) {
  if (threadIdx.x == 5) __syncthreads();
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 1);
}
__global__ void masked(float* out, unsigned mask, unsigned lanes, int delta) {
  if (threadIdx.x < lanes) out[threadIdx.x] = __shfl_down_sync(mask, static_cast<float>(threadIdx.x), delta);
}

TEST(Emulation, ShufflesReadWhatTheOtherLaneOffers) {
  const auto sums = bits_in_orders(2, [](float* out) {
    EXPECT_EQ(told(1, 64, sum_of_warp, out), "");
    EXPECT_EQ(out[0], 32 * 33 / 2);
    EXPECT_EQ(out[1], 32 * 33 / 2 + 32 * 32);
  });
  EXPECT_TRUE(all_alike(sums));
  for (const int width : {32, 16}) {
    Floats out("out", 64);
    EXPECT_EQ(told(1, 64, halves, out.data(), width), "");
    for (size_t i = 0; i < 64; ++i) {
      const size_t last = i / static_cast<size_t>(width) * static_cast<size_t>(width) + static_cast<size_t>(width) - 1;
      EXPECT_EQ(out[i], static_cast<float>(i + 3 <= last ? i + 3 : i)) << i << " of " << width;
    }
  }
  Floats out("out", 32);
  EXPECT_EQ(told(1, 32, masked, out.data(), 0xffffu, 16u, 0), "");  // half a warp alone
}

TEST(Emulation, ShufflesWithoutALaneAreNamed) {
  Floats out("out", 64);
  EXPECT_THAT(told(1, 64, one_lane_gone, out.data()),
              AllOf(HasSubstr(" waits in the shuffle emulation_test.cpp:"), EndsWith(" for lane 5, which has ended")));
  EXPECT_THAT(told(1, 32, one_lane_at_a_barrier, out.data()),
              HasSubstr(" for lane 5, which waits at the barrier emulation_test.cpp:"));
  EXPECT_THAT(told(1, 20, sum_of_warp, out.data()), EndsWith(" for lane 20, which the block does not have"));
  EXPECT_THAT(told(1, 32, masked, out.data(), 0xffffu, 16u, 8),
              HasSubstr("thread (8, 0, 0) reads lane 16 in the shuffle emulation_test.cpp:"));
  EXPECT_THAT(told(1, 32, masked, out.data(), 0xffffu, 32u, 0), EndsWith("whose mask does not name it"));
}

// Each block reads what the one before it wrote.
__global__ void chain(float* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = blockIdx.x == 0 ? 1 : out[blockIdx.x - 1] + 1;
}

TEST(Emulation, BlocksThatWaitForEachOtherShow) {
  EXPECT_FALSE(all_alike(bits_in_orders(8, [](float* out) { told(8, 32, chain, out); })));
}

TEST(Emulation, GridsThatCudaRefuses) {
  Floats out("out", 8);
  EXPECT_THAT(told(0, 32, chain, out.data()), HasSubstr("a grid of (0, 1, 1) blocks of (32, 1, 1) threads"));
  EXPECT_THAT(told(1, 1025, chain, out.data()), HasSubstr("(1025, 1, 1) threads"));
  EXPECT_THAT(told(dim3(1, 65536), 32, chain, out.data()), HasSubstr("(1, 65536, 1) blocks"));
}

TEST(Emulation, ThreadsOfTheHostDoNotMeet) {
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> sums(4, std::vector<float>(2));
  for (std::vector<float>& sum : sums)
    threads.emplace_back([&sum] {
      for (int i = 0; i < 20; ++i) told(3, 64, sum_of_warp, sum.data());
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& sum : sums) EXPECT_EQ(sum[1], 32 * 33 / 2 + 32 * 32);
}

TEST(Emulation, EachLaunchIsAnnouncedWithItsStream) {
  static cudaStream_t seen = nullptr;
  set_before_launch([](cudaStream_t stream) { seen = stream; });
  Floats out("out", 2);
  launch("kernel", {reinterpret_cast<cudaStream_t>(uintptr_t{3}), 1, 64}, sum_of_warp, out.data());
  set_before_launch(nullptr);
  EXPECT_EQ(seen, reinterpret_cast<cudaStream_t>(uintptr_t{3}));
}

// A crash outside of kernels stays one.
TEST(EmulationDeathTest, OtherFaultsEndTheProgram) {
  const Floats out("out", 2);
  told(1, 64, sum_of_warp, out.data());
  EXPECT_DEATH(static_cast<volatile float*>(out.data())[2] = 1, "");
}

TEST(Emulation, BFloat16IsLibTorchs) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65521) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const __nv_bfloat16 mine = __float2bfloat16_rn(x);
    if (std::isnan(x)) {
      EXPECT_EQ(mine.bits, 0x7fff);
    } else {
      EXPECT_EQ(mine.bits, c10::BFloat16(x).x) << x;
      EXPECT_EQ(__bfloat162float(mine), static_cast<float>(c10::BFloat16(x)));
    }
  }
  const float tie = std::bit_cast<float>(0x3f808000u);  // between 1 and the next
  EXPECT_EQ(__float2bfloat16_rn(tie).bits, 0x3f80);
  EXPECT_EQ(__float2bfloat16_rn(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
}

}  // namespace
}  // namespace lockstep::emulation
