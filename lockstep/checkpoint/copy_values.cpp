#include "lockstep/checkpoint/copy_values.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

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

// to[r][c] = from[c][r] by tiles, which are gathered row by row of `from` and written row by row of `to`.
template <typename Element>
void transpose(const at::Tensor& to, const at::Tensor& from) {
  auto* const out = static_cast<Element*>(to.mutable_data_ptr());
  const auto* const in = static_cast<const Element*>(from.const_data_ptr());
  const int64_t rows = to.size(0), columns = to.size(1), out_stride = to.stride(0), in_stride = from.stride(1);
  at::parallel_for(0, (rows + kTile - 1) / kTile, 1 + kGrain / (kTile * columns), [&](int64_t first, int64_t last) {
    Element tile[kTile][kTile + 1];
    for (int64_t row = first * kTile; row < std::min(rows, last * kTile); row += kTile) {
      const int64_t height = std::min(kTile, rows - row);
      for (int64_t column = 0; column < columns; column += kTile) {
        const int64_t width = std::min(kTile, columns - column);
        for (int64_t c = 0; c < width; ++c) {
          const Element* const line = in + (column + c) * in_stride + row;
          for (int64_t r = 0; r < height; ++r) tile[r][c] = line[r];
        }
        for (int64_t r = 0; r < height; ++r) std::copy_n(tile[r], width, out + (row + r) * out_stride + column);
      }
    }
  });
}

}  // namespace

void copy_values(const at::Tensor& to, const at::Tensor& from) {
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
