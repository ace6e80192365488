// The scan of a state space backward, by the formulas of nn/state_space_cpu_backward.cpp. Chunk by chunk from the last one: a block of threads has 32
// channels of a head, makes the states before the chunk's tiles again, and goes back over them; then B's and C's gradients are summed over the
// heads of their group.
#include "lockstep/nn/cuda/scan_tile.cuh"

namespace lockstep::nn::cuda {
namespace {

constexpr int64_t kDoubles = 2;  // floats in a double

int64_t channel_tiles(const ScanSizes& s) { return (s.channels + kTileChannels - 1) / kTileChannels; }

// What lies where in the workspace; counts of floats.
struct Space {
  explicit Space(const ScanSizes& s)
      : pieces(s.batch * s.pieces), tiles(channel_tiles(s)), rows(s.chunk < s.tokens / s.pieces ? s.chunk : s.tokens / s.pieces),
        token_tiles((rows + kTileTokens - 1) / kTileTokens), along(2 * tiles * pieces * s.heads * kDoubles),
        states(pieces * s.heads * token_tiles * s.channels * s.numbers), dstates(pieces * s.heads * s.channels * s.numbers),
        groups(s.heads * tiles * pieces * rows * s.numbers), steps(tiles * pieces * rows * s.heads) {}
  int64_t pieces, tiles, rows, token_tiles;     // rows: of a chunk
  int64_t along, states, dstates, groups, steps;  // groups: of B, and of C
  int64_t all() const { return along + states + dstates + 2 * groups + steps; }
};

struct Work {
  double* along;   // [2, tiles, B pieces, H]: da and dd
  float* states;   // [B pieces, H, tiles of tokens, P, N]: before each tile of the chunk
  float* dstates;  // [B pieces, H, P, N]: of the state behind the tile that is next
  float* db;       // [H tiles, B pieces, rows, N]
  float* dc;
  float* ddelta;   // [tiles, B pieces, rows, H]
  int64_t rows, token_tiles;
};
Work work_of(const ScanBackward& call) {
  const Space space(call.in.sizes);
  float* at = call.workspace;
  const auto take = [&](int64_t size) {
    float* const taken = at;
    at += size;
    return taken;
  };
  Work work{};
  work.along = reinterpret_cast<double*>(take(space.along));
  work.states = take(space.states);
  work.dstates = take(space.dstates);
  work.db = take(space.groups);
  work.dc = take(space.groups);
  work.ddelta = take(space.steps);
  work.rows = space.rows;
  work.token_tiles = space.token_tiles;
  return work;
}

// to [8][32] of a state in memory.
__device__ inline void load_state_slice(const float* from, const ScanSizes& s, const ScanPart& part, int64_t number,
                                        float (&to)[kSlice][kTileChannels]) {
  for (int i = threadIdx.x; i < kSlice * kTileChannels; i += blockDim.x) {
    const int n = i % kSlice, p = i / kSlice;
    to[n][p] = number + n < s.numbers && p < part.channels ? from[(part.channel + p) * s.numbers + number + n] : 0.0f;
  }
}
__device__ inline void store_state_slice(const float (&from)[kSlice][kTileChannels], const ScanSizes& s, const ScanPart& part, int64_t number,
                                         float* to) {
  for (int i = threadIdx.x; i < kSlice * kTileChannels; i += blockDim.x) {
    const int n = i % kSlice, p = i / kSlice;
    if (number + n < s.numbers && p < part.channels) to[(part.channel + p) * s.numbers + number + n] = from[n][p];
  }
}

// state = whole state + sum over tokens of numbers[t][n] weights[t] channels[t][p]
__device__ inline void advance(float whole, const float (&numbers)[kTileTokens][kSlice], const float* weights,
                               const float (&channels)[kTileTokens][kTileChannels], float (&state)[kSlice][kTileChannels]) {
  for (int i = threadIdx.x; i < kSlice * kTileChannels; i += blockDim.x) {
    const int n = i / kTileChannels, p = i % kTileChannels;
    float sum = 0;
    for (int t = 0; t < kTileTokens; ++t) sum += numbers[t][n] * (weights[t] * channels[t][p]);
    state[n][p] = whole * state[n][p] + sum;
  }
}

template <typename T>
__global__ void scan_backward_first_kernel(ScanBackwardFirst call, int64_t parts) {
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], c);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], dy);
  LOCKSTEP_SHARED(float[kSlice][kTileChannels], dstate);
  LOCKSTEP_SHARED(ScanTile, tile);
  const ScanSizes& s = call.in.sizes;
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const ScanPart part(s, i);
    float* const to = call.dfirst + part.of_piece(s) * s.channels * s.numbers;
    bool begun = false;
    for (int64_t chunk = s.chunks; chunk-- > 0;) {
      const int64_t end = (chunk + 1) * s.chunk < part.length ? (chunk + 1) * s.chunk : part.length, begin = chunk * s.chunk;
      for (int64_t place = begin + (end - begin - 1) / kTileTokens * kTileTokens; place >= begin; place -= kTileTokens) {
        const int count = static_cast<int>(end - place < kTileTokens ? end - place : kTileTokens);
        load_tile(call.in, part, part.first + place, count, tile);
        load_channels<T>(call.dy, part, part.first + place, count, nullptr, dy);
        for (int64_t number = 0; number < s.numbers; number += kSlice) {
          __syncthreads();
          load_slice<T>(call.in.c, part, part.first + place, count, number, s.numbers, c);
          if (begun)
            load_state_slice(to, s, part, number, dstate);
          else
            for (int j = threadIdx.x; j < kSlice * kTileChannels; j += blockDim.x) dstate[j / kTileChannels][j % kTileChannels] = 0;
          __syncthreads();
          advance(tile.whole, c, tile.in, dy, dstate);
          __syncthreads();
          store_state_slice(dstate, s, part, number, to);
        }
        begun = true;
      }
    }
  }
}

// Sums of a tile by token.
struct TileSums {
  float before[kTileTokens], behind[kTileTokens], seeing[kTileTokens], seen[kTileTokens], inputs[kTileTokens], skip[kTileTokens];
};

// A power a delta_t is part of every decay from before t to t or later: pairs (seer, seen) with seen < t <= seer. By one thread.
__device__ inline void put_ddelta(const ScanTile& tile, const TileSums& sums, int count, float kept, float a, float* ddelta, int64_t stride,
                                  double* da, double* dd) {
  double power[kTileTokens], later = kept, earlier = 0;
  for (int t = count; t-- > 0;) {
    later += static_cast<double>(sums.seeing[t]) - sums.seen[t] + sums.before[t];
    power[t] = later;
  }
  for (int t = 0; t < count; ++t) {
    power[t] += earlier;
    earlier += sums.behind[t];
    *da += power[t] * tile.delta[t];
    *dd += sums.skip[t];
    ddelta[t * stride] = a * static_cast<float>(power[t]) + sums.inputs[t];
  }
}

template <typename T>
__global__ void scan_backward_kernel(ScanBackward call, Work work, int64_t chunk, int64_t parts) {
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], b);
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], c);
  LOCKSTEP_SHARED(float[kTileTokens][kSlice], dc);
  LOCKSTEP_SHARED(float[kSlice][kTileChannels], state);
  LOCKSTEP_SHARED(float[kSlice][kTileChannels], dstate);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], inputs);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], dy);
  LOCKSTEP_SHARED(float[kTileTokens][kTileChannels], dinputs);
  LOCKSTEP_SHARED(float[kTileTokens][kTileTokens], scores);
  LOCKSTEP_SHARED(float[kTileTokens][kTileTokens], dscores);
  LOCKSTEP_SHARED(ScanTile, tile);
  LOCKSTEP_SHARED(TileSums, sums);
  const ScanSizes& s = call.in.sizes;
  const int64_t size = s.channels * s.numbers;
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const ScanPart part(s, i);
    const int64_t begin = chunk * s.chunk, end = begin + s.chunk < part.length ? begin + s.chunk : part.length;
    const int64_t of_piece = part.batch * s.pieces + part.piece;
    float* const states = work.states + part.of_piece(s) * work.token_tiles * size;
    float* const dstates = work.dstates + part.of_piece(s) * size;
    const int64_t last = (end - begin - 1) / kTileTokens;
    // The states before the chunk's tiles.
    __syncthreads();
    for (int64_t number = 0; number < s.numbers; number += kSlice) {
      __syncthreads();
      load_state_slice(call.before + part.of_chunk(s, chunk) * size, s, part, number, state);
      __syncthreads();
      store_state_slice(state, s, part, number, states);
      if (chunk + 1 < s.chunks) continue;
      if (call.dlast)
        load_state_slice(call.dlast + part.of_piece(s) * size, s, part, number, dstate);
      else
        for (int j = threadIdx.x; j < kSlice * kTileChannels; j += blockDim.x) dstate[j / kTileChannels][j % kTileChannels] = 0;
      __syncthreads();
      store_state_slice(dstate, s, part, number, dstates);
    }
    for (int64_t k = 0; k < last; ++k) {
      const int64_t token = part.first + begin + k * kTileTokens;
      load_tile(call.in, part, token, kTileTokens, tile);
      load_channels<T>(call.in.x, part, token, kTileTokens, tile.delta, inputs);
      for (int64_t number = 0; number < s.numbers; number += kSlice) {
        __syncthreads();
        load_slice<T>(call.in.b, part, token, kTileTokens, number, s.numbers, b);
        load_state_slice(states + k * size, s, part, number, state);
        __syncthreads();
        advance(tile.whole, b, tile.out, inputs, state);
        __syncthreads();
        store_state_slice(state, s, part, number, states + (k + 1) * size);
      }
    }
    double da = 0, dd = 0;  // of thread 0
    for (int64_t k = last; k >= 0; --k) {
      const int64_t place = begin + k * kTileTokens, token = part.first + place;
      const int count = static_cast<int>(end - place < kTileTokens ? end - place : kTileTokens);
      load_tile(call.in, part, token, count, tile);
      load_channels<T>(call.in.x, part, token, count, tile.delta, inputs);
      load_channels<T>(call.dy, part, token, count, nullptr, dy);
      for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x) sums.before[t] = 0;
      for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) dinputs[j / kTileChannels][j % kTileChannels] = 0;
      __syncthreads();
      for (int j = threadIdx.x; j < kTileTokens * kTileTokens; j += blockDim.x) {
        const int t = j / kTileTokens, seen = j % kTileTokens;
        float sum = 0;
        for (int p = 0; p < kTileChannels; ++p) sum += dy[t][p] * inputs[seen][p];
        dscores[t][seen] = sum * decay_between(tile, t, seen);
        scores[t][seen] = 0;
      }
      float kept = 0;
      for (int64_t number = 0; number < s.numbers; number += kSlice) {
        __syncthreads();
        load_slice<T>(call.in.b, part, token, count, number, s.numbers, b);
        load_slice<T>(call.in.c, part, token, count, number, s.numbers, c);
        load_state_slice(states + k * size, s, part, number, state);
        load_state_slice(dstates, s, part, number, dstate);
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
          for (int n = 0; n < kSlice; ++n) sum += b[t][n] * dstate[n][p];
          dinputs[t][p] += sum;
        }
        for (int j = threadIdx.x; j < kSlice * kTileChannels; j += blockDim.x)
          kept += state[j / kTileChannels][j % kTileChannels] * dstate[j / kTileChannels][j % kTileChannels];
        // B and C of the head: by the pairs of the tile, by the state behind it, by that before it.
        const int64_t row = ((part.head * ((s.channels + kTileChannels - 1) / kTileChannels) + part.tile) * s.batch * s.pieces + of_piece) * work.rows +
                            k * kTileTokens;
        for (int j = threadIdx.x; j < kTileTokens * kSlice; j += blockDim.x) {
          const int t = j / kSlice, n = j % kSlice;
          float of_b = 0, of_c = 0, of_state = 0;
          for (int p = 0; p < kTileChannels; ++p) {
            of_b += inputs[t][p] * dstate[n][p];
            of_state += dy[t][p] * state[n][p];
          }
          of_b *= tile.out[t];
          of_state *= tile.in[t];
          dc[t][n] = of_state * c[t][n];
          for (int seen = 0; seen <= t; ++seen) of_c += dscores[t][seen] * b[seen][n];
          for (int seer = t; seer < kTileTokens; ++seer) of_b += dscores[seer][t] * c[seer][n];
          if (t >= count || number + n >= s.numbers) continue;
          work.db[(row + t) * s.numbers + number + n] = of_b;
          work.dc[(row + t) * s.numbers + number + n] = of_c + of_state;
        }
        __syncthreads();
        for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x)
          for (int n = 0; n < kSlice; ++n) sums.before[t] += dc[t][n];
        advance(tile.whole, c, tile.in, dy, dstate);
        __syncthreads();
        store_state_slice(dstate, s, part, number, dstates);
      }
      kept = tile.whole * over_block(kept, 0.0f, Add{});
      for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x) {
        float behind = 0, seeing = 0, seen = 0;
        for (int p = 0; p < kTileChannels; ++p) behind += tile.out[t] * dinputs[t][p] * inputs[t][p];
        for (int other = 0; other < t; ++other) seeing += dscores[t][other] * scores[t][other];
        for (int other = t + 1; other < kTileTokens; ++other) seen += dscores[other][t] * scores[other][t];
        sums.behind[t] = behind, sums.seeing[t] = seeing, sums.seen[t] = seen;
      }
      __syncthreads();
      for (int j = threadIdx.x; j < kTileTokens * kTileTokens; j += blockDim.x) {
        const int t = j / kTileTokens, seen = j % kTileTokens;
        scores[t][seen] *= decay_between(tile, t, seen);
      }
      __syncthreads();
      const float skip = call.in.d[part.head];
      for (int j = threadIdx.x; j < kTileTokens * kTileChannels; j += blockDim.x) {
        const int t = j / kTileChannels, p = j % kTileChannels;
        float sum = tile.out[t] * dinputs[t][p];
        for (int seer = t; seer < kTileTokens; ++seer) sum += scores[seer][t] * dy[seer][p];
        const bool there = t < count && p < part.channels;
        const float x = there ? widen(row_of<T>(call.in.x, part.batch, token + t, part.head)[part.channel + p]) : 0.0f;
        if (there) row_to<T>(call.dx, part.batch, token + t, part.head)[part.channel + p] = narrow<T>(tile.delta[t] * sum + skip * dy[t][p]);
        dinputs[t][p] = sum * x;
        inputs[t][p] = dy[t][p] * x;
      }
      __syncthreads();
      for (int t = threadIdx.x; t < kTileTokens; t += blockDim.x) {
        float by_input = 0, by_skip = 0;
        for (int p = 0; p < kTileChannels; ++p) by_input += dinputs[t][p], by_skip += inputs[t][p];
        sums.inputs[t] = by_input, sums.skip[t] = by_skip;
      }
      __syncthreads();
      if (threadIdx.x == 0)
        put_ddelta(tile, sums, count, kept, call.in.a[part.head],
                   work.ddelta + ((part.tile * s.batch * s.pieces + of_piece) * work.rows + k * kTileTokens) * s.heads + part.head, s.heads, &da, &dd);
    }
    if (threadIdx.x != 0) continue;
    const int64_t tiles = (s.channels + kTileChannels - 1) / kTileChannels, row = (part.tile * s.batch * s.pieces + of_piece) * s.heads + part.head;
    const int64_t all = tiles * s.batch * s.pieces * s.heads;
    const bool fresh = chunk + 1 == s.chunks;
    work.along[row] = (fresh ? 0 : work.along[row]) + da;
    work.along[all + row] = (fresh ? 0 : work.along[all + row]) + dd;
  }
}

// Of a chunk: B and C over the heads of a group and their tiles of channels, step sizes over these tiles.
template <typename T>
__global__ void scan_sums_kernel(ScanBackward call, Work work, int64_t chunk, int64_t rows) {
  const ScanSizes& s = call.in.sizes;
  const int64_t pieces = s.batch * s.pieces, tiles = (s.channels + kTileChannels - 1) / kTileChannels, of_group = s.heads / s.groups;
  const int64_t groups = pieces * rows * s.groups * s.numbers, all = groups + pieces * rows * s.heads;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x, length = s.tokens / s.pieces;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += stride) {
    const bool steps = i >= groups;
    const int64_t j = steps ? i - groups : i, width = steps ? s.heads : s.groups * s.numbers;
    const int64_t at = j % width, row = j / width % rows, piece = j / width / rows;
    const int64_t batch = piece / s.pieces, token = piece % s.pieces * length + chunk * s.chunk + row;
    if (steps) {
      float sum = 0;
      for (int64_t tile = 0; tile < tiles; ++tile) sum += work.ddelta[((tile * pieces + piece) * work.rows + row) * s.heads + at];
      call.ddelta[(batch * s.tokens + token) * s.heads + at] = sum;
      continue;
    }
    const int64_t group = at / s.numbers, number = at % s.numbers;
    float of_b = 0, of_c = 0;
    for (int64_t part = group * of_group * tiles; part < (group + 1) * of_group * tiles; ++part) {
      const int64_t from = ((part * pieces + piece) * work.rows + row) * s.numbers + number;
      of_b += work.db[from];
      of_c += work.dc[from];
    }
    row_to<T>(call.db, batch, token, group)[number] = narrow<T>(of_b);
    row_to<T>(call.dc, batch, token, group)[number] = narrow<T>(of_c);
  }
}

__global__ void scan_along_kernel(ScanBackward call, Work work, int64_t rows) {
  const int64_t heads = call.in.sizes.heads, head = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (head >= heads) return;
  double da = 0, dd = 0;
  for (int64_t row = 0; row < rows; ++row) {
    da += work.along[row * heads + head];
    dd += work.along[(rows + row) * heads + head];
  }
  call.da[head] += static_cast<float>(da);
  call.dd[head] += static_cast<float>(dd);
}

}  // namespace

int64_t scan_backward_workspace(const ScanSizes& sizes) { return Space(sizes).all(); }

void launch_scan_backward_first(cudaStream_t stream, Element type, const ScanBackwardFirst& call) {
  const int64_t parts = scan_parts(call.in.sizes);
  with_type(type, false, [&](auto t, auto) {
    launch("scan_backward_first", {stream, at_most_blocks(parts), kThreads}, scan_backward_first_kernel<decltype(t)>, call, parts);
  });
}

void launch_scan_backward(cudaStream_t stream, Element type, const ScanBackward& call) {
  const ScanSizes& s = call.in.sizes;
  const Work work = work_of(call);
  const int64_t parts = scan_parts(s), length = s.tokens / s.pieces;
  with_type(type, false, [&](auto t, auto) {
    using T = decltype(t);
    for (int64_t chunk = s.chunks; chunk-- > 0;) {
      launch("scan_backward", {stream, at_most_blocks(parts), kThreads}, scan_backward_kernel<T>, call, work, chunk, parts);
      const int64_t rows = length - chunk * s.chunk < s.chunk ? length - chunk * s.chunk : s.chunk;
      launch("scan_sums", {stream, blocks_for(s.batch * s.pieces * rows * (s.groups * s.numbers + s.heads)), kThreads}, scan_sums_kernel<T>, call, work,
             chunk, rows);
    }
  });
  launch("scan_along", {stream, blocks_for(s.heads), kThreads}, scan_along_kernel, call, work, channel_tiles(s) * s.batch * s.pieces);
}

}  // namespace lockstep::nn::cuda
