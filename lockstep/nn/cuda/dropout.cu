// Dropout's masks, drawn where they are used: the same numbers as on the host.
#include <cmath>

#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {
namespace {

constexpr int kNumbers = 4;  // of one block of the stream

// Thread i draws block first / 4 + i. Without kWhole the first and the last number of the mask may lie inside a block.
template <bool kWhole>
__global__ void dropout_mask_kernel(DropoutMask call, float least, int64_t draws) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < draws; i += stride) {
    const PhiloxLanes drawn = call.numbers.block(call.first / kNumbers + static_cast<uint64_t>(i));
    Pack<bool, kNumbers> kept;
    for (int j = 0; j < kNumbers; ++j) kept.at[j] = unit_of(drawn.at[j]) >= least;
    if constexpr (kWhole) {
      store<bool, kNumbers>(call.kept, i, kept);
    } else {
      const int64_t before = static_cast<int64_t>(call.first % kNumbers);
      for (int j = 0; j < kNumbers; ++j) {
        const int64_t at = i * kNumbers + j - before;
        if (at >= 0 && at < call.n) call.kept[at] = kept.at[j];
      }
    }
  }
}

// The smallest float that is not below p: u >= p for the same floats u.
float least_float(double p) {
  const float nearest = static_cast<float>(p);
  return nearest < p ? std::nextafter(nearest, 2.0f) : nearest;
}

}  // namespace

void launch_dropout_mask(cudaStream_t stream, const DropoutMask& call) {
  if (call.n == 0) return;
  const int64_t before = static_cast<int64_t>(call.first % kNumbers);
  const int64_t draws = (before + call.n + kNumbers - 1) / kNumbers;
  const bool whole = before == 0 && call.n % kNumbers == 0 && reinterpret_cast<uintptr_t>(call.kept) % kNumbers == 0;
  const auto kernel = whole ? &dropout_mask_kernel<true> : &dropout_mask_kernel<false>;
  launch("dropout_mask", {stream, blocks_for(draws), kThreads}, kernel, call, least_float(call.probability), draws);
}

}  // namespace lockstep::nn::cuda
