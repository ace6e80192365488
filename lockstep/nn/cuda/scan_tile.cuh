// What the kernels of a scan share: where a block of threads is, and the decays of a tile of up to 32 tokens. Sums of a delta are fp64, so that a
// difference of two keeps its digits.
#pragma once

#include "lockstep/nn/cuda/device.cuh"
#include "lockstep/nn/cuda/state_space.cuh"

namespace lockstep::nn::cuda {

constexpr int kSlice = 8;  // numbers of state whose B and C are in shared memory at a time

template <typename T>
__device__ inline const T* row_of(const Strided& of, int64_t batch, int64_t token, int64_t head) {
  return static_cast<const T*>(of.data) + batch * of.batch + token * of.token + head * of.head;
}
template <typename T>
__device__ inline T* row_to(const Strided& of, int64_t batch, int64_t token, int64_t head) {
  return static_cast<T*>(of.data) + batch * of.batch + token * of.token + head * of.head;
}

// 32 channels of a head of a piece.
struct ScanPart {
  __device__ ScanPart(const ScanSizes& s, int64_t i) {
    const int64_t tiles = (s.channels + kTileChannels - 1) / kTileChannels;
    tile = i % tiles;
    channel = tile * kTileChannels;
    channels = static_cast<int>(s.channels - channel < kTileChannels ? s.channels - channel : kTileChannels);
    head = i / tiles % s.heads;
    piece = i / tiles / s.heads % s.pieces;
    batch = i / tiles / s.heads / s.pieces;
    group = head / (s.heads / s.groups);
    length = s.tokens / s.pieces;
    first = piece * length;
  }
  __device__ int64_t of_piece(const ScanSizes& s) const { return (batch * s.pieces + piece) * s.heads + head; }  // [B, pieces, H]
  __device__ int64_t of_chunk(const ScanSizes& s, int64_t chunk) const {
    return ((batch * s.pieces + piece) * s.chunks + chunk) * s.heads + head;
  }
  int64_t batch, piece, head, group, tile, channel, length, first;  // first: token of the piece
  int channels;
};
__host__ inline int64_t scan_parts(const ScanSizes& s) {
  return s.batch * s.pieces * s.heads * ((s.channels + kTileChannels - 1) / kTileChannels);
}

// Decays of one head in a tile.
struct ScanTile {
  double sum[kTileTokens];   // of a delta from the tile's first token up to this one
  float delta[kTileTokens];  // zero behind the tokens
  float in[kTileTokens];     // decay of the state before the tile, up to the token
  float out[kTileTokens];    // of the token, up to the tile's end
  int from[kTileTokens];     // the last begin of a document at or before it within the tile, or -1
  float whole;               // of the state before the tile, up to its end
  double power;              // of `whole`, minus infinity behind a document's begin
};

// All threads of the block call it; `token` of the sequence, `count` of them.
__device__ inline void load_tile(const ScanInputs& in, const ScanPart& part, int64_t token, int count, ScanTile& tile) {
  __syncthreads();  // the last use is over
  for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x)
    tile.delta[t] = t < count ? in.delta[(part.batch * in.sizes.tokens + token + t) * in.sizes.heads + part.head] : 0.0f;
  __syncthreads();
  const double a = in.a[part.head];
  for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x) {
    double sum = 0;
    int from = -1;
    for (int s = 0; s <= t; ++s) {
      sum += a * tile.delta[s];
      if (s < count && in.begins && in.begins[part.batch * in.sizes.tokens + token + s]) from = s;
    }
    tile.sum[t] = sum;
    tile.from[t] = from;
  }
  __syncthreads();
  const double last = tile.sum[kTileTokens - 1];
  const int begin = tile.from[kTileTokens - 1];
  for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x) {
    tile.in[t] = t < count && tile.from[t] < 0 ? expf(static_cast<float>(tile.sum[t])) : 0.0f;
    tile.out[t] = t < count && t >= begin ? expf(static_cast<float>(last - tile.sum[t])) : 0.0f;
    if (t > 0) continue;
    tile.whole = begin < 0 ? expf(static_cast<float>(last)) : 0.0f;
    tile.power = begin < 0 ? last : -static_cast<double>(INFINITY);
  }
  __syncthreads();
}

// From token s to token t of a tile; zero where t does not see s.
__device__ inline float decay_between(const ScanTile& tile, int t, int s) {
  return s <= t && s >= tile.from[t] ? expf(static_cast<float>(tile.sum[t] - tile.sum[s])) : 0.0f;
}

// to [32][N numbers of a slice] of B or C; zero behind the tokens and the numbers.
template <typename T>
__device__ inline void load_slice(const Strided& of, const ScanPart& part, int64_t token, int count, int64_t number, int64_t numbers,
                                  float (&to)[kTileTokens][kSlice]) {
  for (int i = threadIdx.x; i < kTileTokens * kSlice; i += blockDim.x) {
    const int t = i / kSlice, n = i % kSlice;
    to[t][n] = t < count && number + n < numbers ? widen(row_of<T>(of, part.batch, token + t, part.group)[number + n]) : 0.0f;
  }
}

// to [32][32] of x or dy, times scale[t] where that is not null; zero behind the tokens and the channels.
template <typename T>
__device__ inline void load_channels(const Strided& of, const ScanPart& part, int64_t token, int count, const float* scale,
                                     float (&to)[kTileTokens][kTileChannels]) {
  for (int i = threadIdx.x; i < kTileTokens * kTileChannels; i += blockDim.x) {
    const int t = i / kTileChannels, p = i % kTileChannels;
    const bool there = t < count && p < part.channels;
    to[t][p] = there ? widen(row_of<T>(of, part.batch, token + t, part.head)[part.channel + p]) * (scale ? scale[t] : 1.0f) : 0.0f;
  }
}

// A state in memory [P, N] of a head, and in shared memory turned: [N][32 channels].
template <int N>
__device__ inline void load_state(const float* from, const ScanSizes& s, const ScanPart& part, float (&to)[N][kTileChannels]) {
  for (int i = threadIdx.x; i < N * kTileChannels; i += blockDim.x) {
    const int n = i % N, p = i / N;
    to[n][p] = from && n < s.numbers && p < part.channels ? from[(part.channel + p) * s.numbers + n] : 0.0f;
  }
}
template <int N>
__device__ inline void store_state(const float (&from)[N][kTileChannels], const ScanSizes& s, const ScanPart& part, float* to) {
  for (int i = threadIdx.x; i < N * kTileChannels; i += blockDim.x) {
    const int n = i % N, p = i / N;
    if (n < s.numbers && p < part.channels) to[(part.channel + p) * s.numbers + n] = from[n][p];
  }
}

// body(T{}, std::integral_constant<int, N>) with room for the numbers of a state.
template <typename Body>
void with_numbers(Element type, int64_t numbers, const Body& body) {
  with_type(type, false, [&](auto t, auto) {
    if (numbers <= 64)
      body(t, Width<64>{});
    else if (numbers <= 128)
      body(t, Width<128>{});
    else
      body(t, Width<kMostNumbers>{});
  });
}

}  // namespace lockstep::nn::cuda
