// The causal depth-wise convolution of a state space with its silu, and its derivatives. A thread has one channel of a token; neighbours in a
// warp are neighbours in memory.
#include "lockstep/nn/cuda/device.cuh"
#include "lockstep/nn/cuda/state_space.cuh"

namespace lockstep::nn::cuda {
namespace {

// A token of a piece, and how far back it sees.
struct Seer {
  int64_t batch, token, piece, place;  // place: of the token in its piece
  int seen;                            // columns, itself among them
};
__device__ Seer seer_of(const ConvolutionInputs& in, int64_t row) {
  const int64_t length = in.tokens / in.pieces;
  Seer seer{row / in.tokens, row % in.tokens, row % in.tokens / length, row % in.tokens % length, 1};
  const bool first = in.begins && in.begins[row];
  while (!first && seer.seen < in.width) {
    const int64_t back = seer.seen++;
    if (seer.place >= back && in.begins && in.begins[row - back]) break;  // its document begins there
  }
  return seer;
}

// Column `back` tokens before it.
template <typename T>
__device__ float column(const ConvolutionInputs& in, const Seer& seer, int64_t back, int64_t channel) {
  if (back <= seer.place) return widen(static_cast<const T*>(in.x)[seer.batch * in.x_batch + (seer.token - back) * in.x_token + channel]);
  if (!in.before) return 0;
  const int64_t row = in.width - 1 + seer.place - back;
  return widen(static_cast<const T*>(in.before)[((seer.batch * in.pieces + seer.piece) * (in.width - 1) + row) * in.channels + channel]);
}

template <typename T>
__device__ float sum_of(const ConvolutionInputs& in, const Seer& seer, int64_t channel) {
  const T* const weight = static_cast<const T*>(in.weight) + channel * in.width;
  float sum = in.bias ? widen(static_cast<const T*>(in.bias)[channel]) : 0.0f;
  for (int64_t back = seer.seen - 1; back >= 0; --back) sum += widen(weight[in.width - 1 - back]) * column<T>(in, seer, back, channel);
  return sum;
}

__device__ float open(float sum) { return 1.0f / (1.0f + expf(-sum)); }

// The gradient of the sum ahead of silu, of a token [row].
template <typename T>
__device__ float gradient_of(const ConvolutionInputs& in, const Seer& seer, int64_t channel, const void* dy, int64_t dy_batch, int64_t dy_token) {
  const float sum = sum_of<T>(in, seer, channel), gate = open(sum);
  return widen(static_cast<const T*>(dy)[seer.batch * dy_batch + seer.token * dy_token + channel]) * (gate + sum * gate * (1.0f - gate));
}

template <typename T>
__global__ void convolution_kernel(ConvolutionInputs in, T* y) {
  const int64_t all = in.batch * in.tokens * in.channels, stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += stride) {
    const float sum = sum_of<T>(in, seer_of(in, i / in.channels), i % in.channels);
    y[i] = narrow<T>(sum * open(sum));
  }
}

// What a column gets of the tokens of its piece that see it: those up to W - 1 behind it. Columns before a piece stand at places below zero.
template <typename T>
__global__ void convolution_backward_kernel(ConvolutionBackward call) {
  const ConvolutionInputs& in = call.in;
  const int64_t length = in.tokens / in.pieces, extra = call.dbefore ? in.width - 1 : 0, rows = in.batch * in.pieces * (length + extra);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * in.channels; i += stride) {
    const int64_t channel = i % in.channels, of_piece = i / in.channels / (length + extra), place = i / in.channels % (length + extra) - extra;
    const int64_t batch = of_piece / in.pieces, piece = of_piece % in.pieces;
    const T* const weight = static_cast<const T*>(in.weight) + channel * in.width;
    float sum = 0;
    for (int64_t back = 0; back < in.width; ++back) {
      const int64_t at = place + back;
      if (at < 0 || at >= length) continue;
      const Seer seer = seer_of(in, batch * in.tokens + piece * length + at);
      if (seer.seen > back) sum += widen(weight[in.width - 1 - back]) * gradient_of<T>(in, seer, channel, call.dy, call.dy_batch, call.dy_token);
    }
    if (place >= 0)
      static_cast<T*>(call.dx)[batch * call.dx_batch + (piece * length + place) * call.dx_token + channel] = narrow<T>(sum);
    else
      call.dbefore[(of_piece * (in.width - 1) + in.width - 1 + place) * in.channels + channel] = sum;
  }
}

// Block (channels, stripe): sums over the rows of the stripe; a thread has a channel.
template <typename T>
__global__ void convolution_stripes_kernel(ConvolutionWeightBackward call) {
  const ConvolutionInputs& in = call.in;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, rows = in.batch * in.tokens;
  if (channel >= in.channels) return;
  const int64_t each = (rows + kStripes - 1) / kStripes, begin = blockIdx.y * each, end = begin + each < rows ? begin + each : rows;
  float sums[kMostWidth + 1] = {};
  for (int64_t row = begin; row < end; ++row) {
    const Seer seer = seer_of(in, row);
    const float gradient = gradient_of<T>(in, seer, channel, call.dy, call.dy_batch, call.dy_token);
    sums[kMostWidth] += gradient;
    for (int back = 0; back < seer.seen; ++back) sums[in.width - 1 - back] += gradient * column<T>(in, seer, back, channel);
  }
  float* const to = call.partial + (blockIdx.y * in.channels + channel) * (in.width + 1);
  for (int64_t w = 0; w < in.width; ++w) to[w] = sums[w];
  to[in.width] = sums[kMostWidth];
}

__global__ void convolution_sums_kernel(ConvolutionWeightBackward call) {
  const int64_t width = call.in.width, i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= call.in.channels * (width + 1)) return;
  float sum = 0;
  for (int64_t stripe = 0; stripe < kStripes; ++stripe) sum += call.partial[stripe * call.in.channels * (width + 1) + i];
  const int64_t channel = i / (width + 1), w = i % (width + 1);
  if (w < width)
    call.dweight[channel * width + w] += sum;
  else if (call.dbias)
    call.dbias[channel] += sum;
}

}  // namespace

void launch_convolution(cudaStream_t stream, Element type, const ConvolutionInputs& in, void* y) {
  with_type(type, false, [&](auto t, auto) {
    using T = decltype(t);
    launch("convolution", {stream, blocks_for(in.batch * in.tokens * in.channels), kThreads}, convolution_kernel<T>, in, static_cast<T*>(y));
  });
}

void launch_convolution_backward(cudaStream_t stream, Element type, const ConvolutionBackward& call) {
  const int64_t rows = call.in.batch * (call.in.tokens + (call.dbefore ? call.in.pieces * (call.in.width - 1) : 0));
  with_type(type, false, [&](auto t, auto) {
    using T = decltype(t);
    launch("convolution_backward", {stream, blocks_for(rows * call.in.channels), kThreads}, convolution_backward_kernel<T>, call);
  });
}

void launch_convolution_weight_backward(cudaStream_t stream, Element type, const ConvolutionWeightBackward& call) {
  const int64_t channels = call.in.channels;
  const dim3 grid{static_cast<unsigned>((channels + kThreads - 1) / kThreads), static_cast<unsigned>(kStripes)};
  with_type(type, false, [&](auto t, auto) {
    using T = decltype(t);
    launch("convolution_stripes", {stream, grid, kThreads}, convolution_stripes_kernel<T>, call);
  });
  const int64_t numbers = channels * (call.in.width + 1);
  launch("convolution_sums", {stream, static_cast<unsigned>((numbers + kThreads - 1) / kThreads), kThreads}, convolution_sums_kernel, call);
}

}  // namespace lockstep::nn::cuda
