// The kernels, by pointers: each function puts one or two on a stream and returns. Pointers are the device's; matrices
// have their rows one after the other. Sums have a fixed order: the same bits on every run.
// std::runtime_error "<kernel>: <CUDA's text>" where a launch is refused.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "lockstep/base/philox.h"
#include "lockstep/nn/cuda_math.h"

namespace lockstep::nn::cuda {

enum class Element { kFloat, kBFloat16 };

// n elements; h becomes its gradient.
void launch_gelu_backward(cudaStream_t stream, Element type, const void* dy, void* h, int64_t n);
// Rows of h: gate | up, `size` each.
void launch_swiglu(cudaStream_t stream, Element type, const void* h, void* y, int64_t rows, int64_t size);
void launch_swiglu_backward(cudaStream_t stream, Element type, const void* dy, void* h, int64_t rows, int64_t size);

// x [batch, positions, heads, 2 * half], turned in place. Strides in elements; that of the last dim is 1.
struct RotaryShape {
  int64_t batch, positions, heads, half;
  int64_t batch_stride, position_stride, head_stride;
};
// cosine, sine [positions, half], of x's type.
void launch_rotate(cudaStream_t stream, Element type, void* x, const void* cosine, const void* sine,
                   const RotaryShape& shape, float direction);

// x [rows, size] is x + residual where there is one (sum: written to `sum`, which the statistics are of).
struct NormForward {
  const void* x;
  const void* residual;  // or null
  void* sum;             // null without a residual
  const void* weight;
  const void* bias;      // null: RMSNorm
  void* y;
  float* mean;           // [rows]; null: RMSNorm
  float* rstd;           // [rows]
  int64_t rows, size;
  float eps;
};
void launch_norm(cudaStream_t stream, Element type, const NormForward& call);

struct NormBackward {
  const void* dy;
  const void* x;  // what forward took the statistics of
  const void* weight;
  const float* mean;  // null: RMSNorm
  const float* rstd;
  const void* dresidual;  // added to dx; or null
  void* dx;
  int64_t rows, size;
};
void launch_norm_backward(cudaStream_t stream, Element type, const NormBackward& call);

// weight_grad [size] += sum over rows of dy * xhat; bias_grad += sum over rows of dy, where there is one. Without x,
// only the second: the gradient of any bias. `partial`: kStripes * size floats for each of the two.
#if defined(LOCKSTEP_SMALL_GRIDS)
constexpr int64_t kStripes = 4;
#else
constexpr int64_t kStripes = 64;
#endif
struct NormWeightBackward {
  const void* dy;
  const void* x;  // or null
  const float* mean;
  const float* rstd;
  float* partial;
  float* weight_grad;  // or null
  float* bias_grad;    // or null
  int64_t rows, size;
};
void launch_norm_weight_backward(cudaStream_t stream, Element type, const NormWeightBackward& call);

// logits [rows, size] become softmax - onehot; losses [rows]. A row whose target is kIgnored: zeros and 0; one whose
// target is no column: NaN.
constexpr int64_t kIgnored = -100;
void launch_cross_entropy(cudaStream_t stream, Element type, void* logits, const int64_t* targets, float* losses,
                          int64_t rows, int64_t size);

// A piece of a flat buffer; all fp32 but the copy.
struct AdamWPiece {
  float* value;
  float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* copy;  // bf16, or null
  int64_t size;
  bool decay;
};
// grad becomes grad * scale. Any number of pieces, kPiecesAtOnce by launch.
constexpr int kPiecesAtOnce = 48;
void launch_adamw(cudaStream_t stream, const AdamWPiece* pieces, int count, const AdamWStep& step, float scale);

// out [1] = sum of squares of n floats, in fp64. `partial`: kSquareBlocks doubles.
#if defined(LOCKSTEP_SMALL_GRIDS)
constexpr int64_t kSquareBlocks = 8;
#else
constexpr int64_t kSquareBlocks = 1024;
#endif
void launch_square_sum(cudaStream_t stream, const float* values, int64_t n, double* partial, double* out);

// flag becomes 1 where one of the values is not finite, and stays what it is otherwise. Any number of pieces.
struct WatchedValues {
  const float* values;
  int32_t* flag;
  int64_t size;
};
void launch_mark_nonfinite(cudaStream_t stream, const WatchedValues* pieces, int count);

// kept [n]: whether number first + i of the stream is at least `probability`, which is in [0, 1).
struct DropoutMask {
  bool* kept;
  int64_t n;
  PhiloxStream numbers;
  uint64_t first;
  double probability;
};
void launch_dropout_mask(cudaStream_t stream, const DropoutMask& call);

}  // namespace lockstep::nn::cuda
