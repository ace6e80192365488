// The scan of a state space forward: a block of threads has 32 channels of a head of a piece, whose state stays in shared memory from tile to
// tile; what is read and written of the operands is read and written once.
#include "lockstep/nn/cuda/scan_tile.cuh"

namespace lockstep::nn::cuda {
namespace {

template <typename T, int N>
__global__ void scan_forward_kernel(ScanForward call, int64_t parts) {
  LOCKSTEP_SHARED(float[N][kTileChannels], state);
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], b);
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], c);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], inputs);
  LOCKSTEP_SHARED(float[kTileTokens][kTileTokens], scores);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], sums);
  LOCKSTEP_SHARED(ScanTile, tile);
  const ScanSizes& s = call.in.sizes;
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const ScanPart part(s, i);
    const float skip = call.in.d[part.head];
    double power = 0;
    __syncthreads();
    load_state<N>(nullptr, s, part, state);
    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
      __syncthreads();
      if (call.before) store_state<N>(state, s, part, call.before + part.of_chunk(s, chunk) * s.channels * s.numbers);
      const int64_t end = (chunk + 1) * s.chunk < part.length ? (chunk + 1) * s.chunk : part.length;
      for (int64_t place = chunk * s.chunk; place < end; place += kTileTokens) {
        const int64_t token = part.first + place;
        const int count = static_cast<int>(end - place < kTileTokens ? end - place : kTileTokens);
        load_tile(call.in, part, token, count, tile);
        load_channels<T>(call.in.x, part, token, count, tile.delta, inputs);
        for (int j = threadIdx.x; j < kTileTokens * kTileTokens; j += blockDim.x) scores[j / kTileTokens][j % kTileTokens] = 0;
        for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) sums[j / kTileChannels][j % kTileChannels] = 0;
        for (int64_t number = 0; number < s.numbers; number += kSlice) {
          __syncthreads();
          load_slice<T>(call.in.b, part, token, count, number, s.numbers, b);
          load_slice<T>(call.in.c, part, token, count, number, s.numbers, c);
          __syncthreads();
          for (int j = threadIdx.x; j < kTileTokens * kTileTokens; j += blockDim.x) {
            const int t = j / kTileTokens, seen = j % kTileTokens;
            float sum = 0;
            for (int n = 0; n < kSlice; ++n) sum += c[t][n] * b[seen][n];
            scores[t][seen] += sum;
          }
          for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) {
            const int t = j / kTileChannels, p = j % kTileChannels;
            float sum = 0;
            for (int n = 0; n < kSlice; ++n) sum += c[t][n] * state[number + n][p];
            sums[t][p] += sum;
          }
          __syncthreads();  // outputs have seen the state before the tile
          for (int j = threadIdx.x; j < kSlice * kTileChannels; j += blockDim.x) {
            const int n = j / kTileChannels, p = j % kTileChannels;
            float sum = 0;
            for (int t = 0; t < kTileTokens; ++t) sum += b[t][n] * (tile.out[t] * inputs[t][p]);
            state[number + n][p] = tile.whole * state[number + n][p] + sum;
          }
        }
        __syncthreads();
        for (int j = threadIdx.x; j < kTileTokens * kTileTokens; j += blockDim.x) {
          const int t = j / kTileTokens, seen = j % kTileTokens;
          scores[t][seen] *= decay_between(tile, t, seen);
        }
        __syncthreads();
        for (int j = threadIdx.x; j < count * kTileChannels; j += blockDim.x) {
          const int t = j / kTileChannels, p = j % kTileChannels;
          if (p >= part.channels) continue;
          float y = tile.in[t] * sums[t][p];
          for (int seen = 0; seen <= t; ++seen) y += scores[t][seen] * inputs[seen][p];
          y += skip * widen(row_of<T>(call.in.x, part.batch, token + t, part.head)[part.channel + p]);
          row_to<T>(call.y, part.batch, token + t, part.head)[part.channel + p] = narrow<T>(y);
        }
        power += tile.power;
      }
    }
    __syncthreads();
    if (!call.after) continue;
    store_state<N>(state, s, part, call.after + part.of_piece(s) * s.channels * s.numbers);
    if (threadIdx.x == 0 && part.tile == 0) call.decay[part.of_piece(s)] = expf(static_cast<float>(power));
  }
}

template <typename T, int N>
__global__ void scan_first_kernel(ScanFirst call, int64_t parts) {
  LOCKSTEP_SHARED(float[N][kTileChannels], state);  // before the piece
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], c);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], sums);
  LOCKSTEP_SHARED(ScanTile, tile);
  const ScanSizes& s = call.in.sizes;
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const ScanPart part(s, i);
    const int64_t size = s.channels * s.numbers;
    double power = 0;
    float left = 1;  // of the state; where nothing is, nothing follows
    __syncthreads();
    load_state<N>(call.first + part.of_piece(s) * size, s, part, state);
    for (int64_t chunk = 0; chunk < s.chunks && left > 0; ++chunk) {
      __syncthreads();
      float* const before = call.before + part.of_chunk(s, chunk) * size;
      for (int j = threadIdx.x; j < N * kTileChannels; j += blockDim.x) {
        const int n = j % N, p = j / N;
        if (n < s.numbers && p < part.channels) before[(part.channel + p) * s.numbers + n] += left * state[n][p];
      }
      const int64_t end = (chunk + 1) * s.chunk < part.length ? (chunk + 1) * s.chunk : part.length;
      for (int64_t place = chunk * s.chunk; place < end && left > 0; place += kTileTokens) {
        const int64_t token = part.first + place;
        const int count = static_cast<int>(end - place < kTileTokens ? end - place : kTileTokens);
        load_tile(call.in, part, token, count, tile);
        for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) sums[j / kTileChannels][j % kTileChannels] = 0;
        for (int64_t number = 0; number < s.numbers; number += kSlice) {
          __syncthreads();
          load_slice<T>(call.in.c, part, token, count, number, s.numbers, c);
          __syncthreads();
          for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) {
            const int t = j / kTileChannels, p = j % kTileChannels;
            float sum = 0;
            for (int n = 0; n < kSlice; ++n) sum += c[t][n] * state[number + n][p];
            sums[t][p] += sum;
          }
        }
        __syncthreads();
        for (int j = threadIdx.x; j < count * kTileChannels; j += blockDim.x) {
          const int t = j / kTileChannels, p = j % kTileChannels;
          if (p >= part.channels) continue;
          T* const y = row_to<T>(call.y, part.batch, token + t, part.head) + part.channel + p;
          *y = narrow<T>(widen(*y) + left * tile.in[t] * sums[t][p]);
        }
        power += tile.power;
        left = expf(static_cast<float>(power));
      }
    }
  }
}

}  // namespace

void launch_scan_forward(cudaStream_t stream, Element type, const ScanForward& call) {
  const int64_t parts = scan_parts(call.in.sizes);
  with_numbers(type, call.in.sizes.numbers, [&](auto t, auto numbers) {
    using T = decltype(t);
    launch("scan_forward", {stream, at_most_blocks(parts), kThreads}, scan_forward_kernel<T, decltype(numbers)::value>, call, parts);
  });
}

void launch_scan_first(cudaStream_t stream, Element type, const ScanFirst& call) {
  const int64_t parts = scan_parts(call.in.sizes);
  with_numbers(type, call.in.sizes.numbers, [&](auto t, auto numbers) {
    using T = decltype(t);
    launch("scan_first", {stream, at_most_blocks(parts), kThreads}, scan_first_kernel<T, decltype(numbers)::value>, call, parts);
  });
}

}  // namespace lockstep::nn::cuda
