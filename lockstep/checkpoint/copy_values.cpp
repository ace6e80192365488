#include "lockstep/checkpoint/copy_values.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kTile = 32;  // elements; a row of a tile is one or more cache lines
constexpr int64_t kGrain = int64_t{1} << 18;  // elements that are worth a thread

// Whether the rows of `to` are contiguous and the columns of `from` are: a copy element by element would touch a new
// cache line each time.
bool is_transposition(const at::Tensor& to, const at::Tensor& from) {
  return to.dim() == 2 && to.is_cpu() && from.is_cpu() && to.size(0) > 1 && to.size(1) > 1 && to.stride(1) == 1 &&
         from.stride(0) == 1;
}

// tile[r][c] = in[c * stride + r] of 16 x 16 bytes: each of the log2(kLanes) rounds interleaves the first half of the
// lines with the second, and after all of them lines are columns.
template <typename Element>
void transpose_block(const Element* in, int64_t stride, Element* tile, int64_t tile_stride) {
  constexpr int kLanes = 16 / sizeof(Element);
  using Vector [[gnu::vector_size(16)]] = Element;
  Vector lines[kLanes], mixed[kLanes];
  for (int i = 0; i < kLanes; ++i) std::memcpy(&lines[i], in + i * stride, sizeof(Vector));
  for (int round = 1; round < kLanes; round *= 2) {
    for (int i = 0; i < kLanes / 2; ++i) {
      const Vector a = lines[i], b = lines[i + kLanes / 2];
      if constexpr (kLanes == 4) {
        mixed[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        mixed[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      } else {
        mixed[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        mixed[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
      }
    }
    std::copy_n(mixed, kLanes, lines);
  }
  for (int i = 0; i < kLanes; ++i) std::memcpy(tile + i * tile_stride, &lines[i], sizeof(Vector));
}

// to[r][c] = from[c][r] by tiles, which are gathered row by row of `from` and written row by row of `to`.
template <typename Element>
void transpose(const at::Tensor& to, const at::Tensor& from) {
  auto* const out = static_cast<Element*>(to.mutable_data_ptr());
  const auto* const in = static_cast<const Element*>(from.const_data_ptr());
  constexpr int64_t kLanes = 16 / sizeof(Element);
  const int64_t rows = to.size(0), columns = to.size(1), out_stride = to.stride(0), in_stride = from.stride(1);
  at::parallel_for(0, (rows + kTile - 1) / kTile, 1 + kGrain / (kTile * columns), [&](int64_t first, int64_t last) {
    alignas(64) Element tile[kTile][kTile];
    for (int64_t row = first * kTile; row < std::min(rows, last * kTile); row += kTile) {
      const int64_t height = std::min(kTile, rows - row);
      for (int64_t column = 0; column < columns; column += kTile) {
        const int64_t width = std::min(kTile, columns - column);
        const Element* const corner = in + column * in_stride + row;
        if (height == kTile && width == kTile) {
          for (int64_t c = 0; c < kTile; c += kLanes) {
            for (int64_t r = 0; r < kTile; r += kLanes)
              transpose_block(corner + c * in_stride + r, in_stride, &tile[r][c], kTile);
          }
        } else {
          for (int64_t c = 0; c < width; ++c) {
            for (int64_t r = 0; r < height; ++r) tile[r][c] = corner[c * in_stride + r];
          }
        }
        for (int64_t r = 0; r < height; ++r) std::copy_n(tile[r], width, out + (row + r) * out_stride + column);
      }
    }
  });
}

}  // namespace

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (to.dim() == 2 && !is_transposition(to, from) && is_transposition(to.t(), from.t())) {
    copy_values(to.t(), from.t());
    return;
  }
  if (!is_transposition(to, from) || (to.element_size() != 4 && to.element_size() != 2)) {
    to.copy_(from);
    return;
  }
  const at::Tensor values = from.to(to.scalar_type());  // keeps the strides
  if (values.stride(0) != 1) {
    to.copy_(values);
  } else if (to.element_size() == 4) {
    transpose<uint32_t>(to, values);
  } else {
    transpose<uint16_t>(to, values);
  }
}

}  // namespace lockstep::checkpoint
