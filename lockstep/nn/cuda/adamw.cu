// AdamW over pieces of flat buffers in one pass: scale of the gradient, moments, decay, master weight, bf16 copy; and the
// sum of squares that the scale is made of.
#include <algorithm>

#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {
namespace {

// By value, as the argument of a launch.
struct Pieces {
  AdamWPiece piece[kPiecesAtOnce];
  int64_t first_block[kPiecesAtOnce + 1];
  int count;
};
static_assert(sizeof(Pieces) <= 4000, "arguments of a kernel");

constexpr int64_t kBlockElements = 8 * kThreads;

__global__ void adamw_kernel(const __grid_constant__ Pieces pieces, AdamWStep step, float scale) {
  int index = 0;
  while (blockIdx.x >= pieces.first_block[index + 1]) ++index;
  const AdamWPiece& piece = pieces.piece[index];
  if (!piece.decay) step.weight_decay = 0.0f;
  const int64_t begin = (blockIdx.x - pieces.first_block[index]) * kBlockElements;
  const int64_t end = begin + kBlockElements < piece.size ? begin + kBlockElements : piece.size;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
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
  for (int first = 0; first < count; first += kPiecesAtOnce) {
    Pieces some{};
    some.count = std::min(kPiecesAtOnce, count - first);
    for (int i = 0; i < some.count; ++i) {
      some.piece[i] = pieces[first + i];
      some.first_block[i + 1] = some.first_block[i] + (pieces[first + i].size + kBlockElements - 1) / kBlockElements;
    }
    const int64_t blocks = some.first_block[some.count];
    if (blocks == 0) continue;
    adamw_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(some, step, scale);
    check_launch("adamw");
  }
}

void launch_square_sum(cudaStream_t stream, const float* values, int64_t n, double* partial, double* out) {
  square_sum_kernel<<<static_cast<unsigned>(kSquareBlocks), kThreads, 0, stream>>>(values, n, partial);
  check_launch("square_sum");
  add_partial_kernel<<<1, kThreads, 0, stream>>>(partial, out);
  check_launch("square_sum");
}

}  // namespace lockstep::nn::cuda
