// AdamW over pieces of flat buffers in one pass: scale of the gradient, moments, decay, master weight, bf16 copy; and the
// sum of squares that the scale is made of.
#include "lockstep/nn/cuda/pieces.cuh"

namespace lockstep::nn::cuda {
namespace {

__global__ void adamw_kernel(const __grid_constant__ Pieces<AdamWPiece> pieces, AdamWStep step, float scale) {
  const Share share = share_of_block(pieces);
  const AdamWPiece& piece = pieces.at[share.index];
  if (!piece.decay) step.weight_decay = 0.0f;
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += blockDim.x) {
    const AdamWElement next = adamw({piece.value[i], piece.exp_avg[i], piece.exp_avg_sq[i]}, piece.grad[i] * scale, step);
    piece.value[i] = next.value;
    piece.exp_avg[i] = next.exp_avg;
    piece.exp_avg_sq[i] = next.exp_avg_sq;
    if (piece.copy) static_cast<__nv_bfloat16*>(piece.copy)[i] = narrow<__nv_bfloat16>(next.value);
  }
}

// A block's share of the values is fixed by n alone.
__global__ void square_sum_kernel(const float* values, int64_t n, double* partial) {
  double sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    const double x = values[i];
    sum += x * x;
  }
  sum = over_block(sum, 0.0, Add{});
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_partial_kernel(const double* partial, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < kSquareBlocks; i += blockDim.x) sum += partial[i];
  sum = over_block(sum, 0.0, Add{});
  if (threadIdx.x == 0) *out = sum;
}

}  // namespace

void launch_adamw(cudaStream_t stream, const AdamWPiece* pieces, int count, const AdamWStep& step, float scale) {
  some_at_once(pieces, count, [&](const Pieces<AdamWPiece>& some, unsigned blocks) {
    launch("adamw", {stream, blocks, kThreads}, adamw_kernel, some, step, scale);
  });
}

void launch_square_sum(cudaStream_t stream, const float* values, int64_t n, double* partial, double* out) {
  launch("square_sum", {stream, static_cast<unsigned>(kSquareBlocks), kThreads}, square_sum_kernel, values, n, partial);
  launch("square_sum", {stream, 1, kThreads}, add_partial_kernel, partial, out);
}

}  // namespace lockstep::nn::cuda
