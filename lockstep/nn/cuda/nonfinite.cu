// Which pieces of a gradient hold a value that is not finite.
#include "lockstep/nn/cuda/pieces.cuh"

namespace lockstep::nn::cuda {
namespace {

// Several threads may write one flag: all write 1.
__global__ void mark_nonfinite_kernel(const __grid_constant__ Pieces<WatchedValues> pieces) {
  const Share share = share_of_block(pieces);
  const WatchedValues& piece = pieces.at[share.index];
  bool found = false;
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += blockDim.x) found |= !is_finite(piece.values[i]);
  if (found) *piece.flag = 1;
}

}  // namespace

void launch_mark_nonfinite(cudaStream_t stream, const WatchedValues* pieces, int count) {
  some_at_once(pieces, count, [&](const Pieces<WatchedValues>& some, unsigned blocks) {
    launch("mark_nonfinite", {stream, blocks, kThreads}, mark_nonfinite_kernel, some);
  });
}

}  // namespace lockstep::nn::cuda
