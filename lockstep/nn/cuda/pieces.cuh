// Pieces of flat buffers, of any sizes and any number, in few launches.
#pragma once

#include <algorithm>

#include "lockstep/nn/cuda/device.cuh"

namespace lockstep::nn::cuda {

// Those of one launch, by value. Piece: anything small with an int64_t `size`.
template <typename Piece>
struct Pieces {
  Piece at[kPiecesAtOnce];
  int64_t first_block[kPiecesAtOnce + 1];
};

constexpr int64_t kBlockElements = 8 * kThreads;

// What a block does: elements [begin, end) of piece `index`.
struct Share {
  int index;
  int64_t begin, end;
};
template <typename Piece>
__device__ Share share_of_block(const Pieces<Piece>& pieces) {
  int index = 0;
  while (blockIdx.x >= pieces.first_block[index + 1]) ++index;
  const int64_t size = pieces.at[index].size;
  const int64_t begin = (blockIdx.x - pieces.first_block[index]) * kBlockElements;
  return {index, begin, begin + kBlockElements < size ? begin + kBlockElements : size};
}

// body(pieces, blocks), kPiecesAtOnce of them after the other; pieces without elements have no block.
template <typename Piece, typename Body>
void some_at_once(const Piece* pieces, int count, const Body& body) {
  static_assert(sizeof(Pieces<Piece>) <= 4000, "arguments of a kernel");
  for (int first = 0; first < count; first += kPiecesAtOnce) {
    const int end = std::min(kPiecesAtOnce, count - first);
    Pieces<Piece> some{};
    for (int i = 0; i < end; ++i) {
      some.at[i] = pieces[first + i];
      some.first_block[i + 1] = some.first_block[i] + (pieces[first + i].size + kBlockElements - 1) / kBlockElements;
    }
    if (some.first_block[end] > 0) body(some, static_cast<unsigned>(some.first_block[end]));
  }
}

}  // namespace lockstep::nn::cuda
