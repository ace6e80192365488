// LayerNorm and RMSNorm, forward with the residual in, and both halves of backward. A block has a row; what it reads a
// second time is still in the cache.
#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {
namespace {

template <typename T>
__global__ void norm_kernel(NormForward call) {
  const T* weight = static_cast<const T*>(call.weight);
  const T* bias = static_cast<const T*>(call.bias);
  const float count = static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    const T* x = static_cast<const T*>(call.x) + begin;
    float total = 0, squares = 0;
    if (call.residual) {
      const T* residual = static_cast<const T*>(call.residual) + begin;
      T* sum = static_cast<T*>(call.sum) + begin;
      // Statistics are of the sum as it is stored: backward reads that. Each thread reads again what it wrote itself.
      for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) sum[i] = narrow<T>(widen(x[i]) + widen(residual[i]));
      x = sum;
    }
    float mean = 0;
    if (call.mean) {
      for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) total += widen(x[i]);
      mean = over_block(total, 0.0f, Add{}) / count;
    }
    for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) {
      const float away = widen(x[i]) - mean;
      squares += away * away;
    }
    const float rstd = rsqrtf(over_block(squares, 0.0f, Add{}) / count + call.eps);
    if (threadIdx.x == 0) {
      if (call.mean) call.mean[row] = mean;
      call.rstd[row] = rstd;
    }
    T* y = static_cast<T*>(call.y) + begin;
    for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) {
      const float scaled = (widen(x[i]) - mean) * rstd * widen(weight[i]);
      y[i] = narrow<T>(bias ? scaled + widen(bias[i]) : scaled);
    }
  }
}

// dx may be dy or the residual's gradient: a thread reads an element for the last time right before it writes it.
template <typename T>
__global__ void norm_backward_kernel(NormBackward call) {
  const T* weight = static_cast<const T*>(call.weight);
  const float count = static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    const T* dy = static_cast<const T*>(call.dy) + begin;
    const T* x = static_cast<const T*>(call.x) + begin;
    const float mean = call.mean ? call.mean[row] : 0.0f;
    const float rstd = call.rstd[row];
    Pair sums{0, 0};  // of g, of g * xhat
    for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) {
      const float g = widen(dy[i]) * widen(weight[i]);
      sums.first += g;
      sums.second += g * (widen(x[i]) - mean) * rstd;
    }
    sums = over_block(sums, Pair{0, 0}, Add{});
    const float mean_g = call.mean ? sums.first / count : 0.0f;
    const float mean_gx = sums.second / count;
    const T* dresidual = call.dresidual ? static_cast<const T*>(call.dresidual) + begin : nullptr;
    T* dx = static_cast<T*>(call.dx) + begin;
    for (int64_t i = threadIdx.x; i < call.size; i += blockDim.x) {
      const float xhat = (widen(x[i]) - mean) * rstd;
      const float gradient = norm_backward(widen(dy[i]) * widen(weight[i]), xhat, rstd, mean_g, mean_gx);
      dx[i] = narrow<T>(dresidual ? gradient + widen(dresidual[i]) : gradient);
    }
  }
}

constexpr int kColumns = 32;    // of a block
constexpr int kRowsAtOnce = 8;  // threads of a column

// Block (columns, stripe): sums over the rows of the stripe, those of a thread first, then the threads in order.
template <typename T>
__global__ void column_sums_kernel(NormWeightBackward call) {
  LOCKSTEP_SHARED(Pair[kRowsAtOnce][kColumns], sums);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const int64_t each = (call.rows + kStripes - 1) / kStripes;
  const int64_t begin = blockIdx.y * each;
  const int64_t end = begin + each < call.rows ? begin + each : call.rows;
  Pair sum{0, 0};
  for (int64_t row = begin + threadIdx.y; column < call.size && row < end; row += kRowsAtOnce) {
    const float dy = widen(static_cast<const T*>(call.dy)[row * call.size + column]);
    sum.second += dy;
    if (!call.x) continue;
    const float x = widen(static_cast<const T*>(call.x)[row * call.size + column]);
    sum.first += dy * (x - (call.mean ? call.mean[row] : 0.0f)) * call.rstd[row];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= call.size) return;
  for (int i = 1; i < kRowsAtOnce; ++i) sum = Add{}(sum, sums[i][threadIdx.x]);
  const int64_t place = blockIdx.y * call.size + column;
  call.partial[place] = sum.first;
  call.partial[kStripes * call.size + place] = sum.second;
}

__global__ void add_stripes_kernel(NormWeightBackward call) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; column < call.size; column += stride) {
    Pair sum{0, 0};
    for (int64_t stripe = 0; stripe < kStripes; ++stripe) {
      sum.first += call.partial[stripe * call.size + column];
      sum.second += call.partial[(kStripes + stripe) * call.size + column];
    }
    if (call.weight_grad) call.weight_grad[column] += sum.first;
    if (call.bias_grad) call.bias_grad[column] += sum.second;
  }
}

}  // namespace

void launch_norm(cudaStream_t stream, Element type, const NormForward& call) {
  if (call.rows * call.size == 0) return;
  with_type(type, false, [&](auto t, auto) {
    launch("norm", {stream, at_most_blocks(call.rows), kThreads}, norm_kernel<decltype(t)>, call);
  });
}

void launch_norm_backward(cudaStream_t stream, Element type, const NormBackward& call) {
  if (call.rows * call.size == 0) return;
  with_type(type, false, [&](auto t, auto) {
    launch("norm_backward", {stream, at_most_blocks(call.rows), kThreads}, norm_backward_kernel<decltype(t)>, call);
  });
}

void launch_norm_weight_backward(cudaStream_t stream, Element type, const NormWeightBackward& call) {
  if (call.rows * call.size == 0) return;
  const dim3 blocks(static_cast<unsigned>((call.size + kColumns - 1) / kColumns), static_cast<unsigned>(kStripes));
  with_type(type, false, [&](auto t, auto) {
    launch("norm_weight_backward", {stream, blocks, dim3(kColumns, kRowsAtOnce)}, column_sums_kernel<decltype(t)>, call);
  });
  launch("norm_weight_backward", {stream, blocks_for(call.size), kThreads}, add_stripes_kernel, call);
}

}  // namespace lockstep::nn::cuda
