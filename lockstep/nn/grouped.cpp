#include "lockstep/nn/grouped.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/accumulate_cpu.h"
#include "lockstep/nn/gemm_rows.h"
#include "lockstep/nn/grouped_gpu.h"

namespace lockstep::nn {
namespace {

// Large enough that packing the operands is little beside multiplying them, small enough that threads end together. The
// cut depends on sizes alone: the same bits with any number of threads.
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileColumns = 512;
// oneDNN compiles a kernel for each shape and keeps about a thousand; counts of rows are new in every step. Multiples of
// this, and what is left below it, are few shapes.
constexpr int64_t kRowStep = 64;

struct Span {
  int64_t begin = 0, size = 0;
};

// Part of one group's result.
struct Tile {
  int64_t group = 0;
  Span rows, columns;
};

std::vector<Span> cut(Span whole, int64_t part) {
  std::vector<Span> parts;
  for (int64_t begin = 0; begin < whole.size; begin += part)
    parts.push_back({.begin = whole.begin + begin, .size = std::min(part, whole.size - begin)});
  return parts;
}

bool compiles_shapes(const at::Tensor& rows) { return rows.scalar_type() == at::kBFloat16; }

// A group's rows as pieces of few shapes.
std::vector<Span> cut_rows(Span group, int64_t part, bool few_shapes) {
  const int64_t even = few_shapes ? group.size / kRowStep * kRowStep : group.size;
  std::vector<Span> pieces = cut({.begin = group.begin, .size = even}, part);
  if (even < group.size) pieces.push_back({.begin = group.begin + even, .size = group.size - even});
  return pieces;
}

std::vector<Span> group_rows(std::span<const int64_t> sizes, int64_t rows) {
  std::vector<Span> groups;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    LOCKSTEP_CHECK(size >= 0, "a group of ", size, " rows");
    groups.push_back({.begin = begin, .size = size});
    begin += size;
  }
  LOCKSTEP_CHECK_EQ(begin, rows, "rows of all groups");
  return groups;
}

// One parallel region; who is ready takes the next tile. A single tile is left to the library's own threads.
void run_tiles(const std::vector<Tile>& tiles, const std::function<void(const Tile&)>& run) {
  std::atomic<size_t> next = 0;
  const int64_t workers = std::min(static_cast<int64_t>(tiles.size()), static_cast<int64_t>(at::get_num_threads()));
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView guard;  // LibTorch's modes are the calling thread's, not the workers'
    for (size_t i = next++; i < tiles.size(); i = next++) run(tiles[i]);
  });
}

at::Tensor part(const at::Tensor& matrix, Span rows, Span columns) {
  return matrix.narrow(0, rows.begin, rows.size).narrow(1, columns.begin, columns.size);
}

// Tiles of the result [R, columns].
std::vector<Tile> result_tiles(const std::vector<Span>& groups, int64_t columns, bool few_shapes) {
  std::vector<Tile> tiles;
  const std::vector<Span> column_parts = cut({.begin = 0, .size = columns}, kTileColumns);
  for (size_t group = 0; group < groups.size(); ++group)
    for (const Span& rows : cut_rows(groups[group], kTileRows, few_shapes))
      for (const Span& part_of_columns : column_parts)
        tiles.push_back({.group = static_cast<int64_t>(group), .rows = rows, .columns = part_of_columns});
  return tiles;
}

void multiply_few(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& out, const Tile& tile) {
  const int64_t depth = rows.size(1), columns = out.size(1);
  const FewRowsProduct product{.x = rows.const_data_ptr<float>() + tile.rows.begin * depth,
                               .weight = weight.const_data_ptr<float>() + tile.group * columns * depth,
                               .bias = nullptr,
                               .out = out.data_ptr<float>() + tile.rows.begin * columns,
                               .rows = tile.rows.size,
                               .columns = columns,
                               .depth = depth};
  multiply_few_rows(product, tile.columns.begin, tile.columns.begin + tile.columns.size);
}

void check_operands(const at::Tensor& rows, const at::Tensor& weight, std::span<const int64_t> sizes, int64_t width) {
  LOCKSTEP_CHECK(rows.is_contiguous() && weight.is_contiguous());
  LOCKSTEP_CHECK_EQ(rows.size(1), width, "columns of rows and weight");
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(sizes.size()), weight.size(0), "groups");
}

void check_bias(const GroupedBias& bias, const at::Tensor& weight) {
  LOCKSTEP_CHECK(bias.values.is_contiguous() && bias.values.scalar_type() == weight.scalar_type());
  LOCKSTEP_CHECK_EQ(bias.values.size(0), weight.size(0), "groups of the bias");
  LOCKSTEP_CHECK(bias.first >= 0 && bias.first + bias.values.size(1) <= weight.size(1), "columns ", bias.first, " to ",
                 bias.first + bias.values.size(1), " of ", weight.size(1));
}

}  // namespace

at::Tensor grouped_multiply(const at::Tensor& rows, const at::Tensor& weight, std::span<const int64_t> sizes, const GroupedBias& bias) {
  check_operands(rows, weight, sizes, weight.size(2));
  if (bias.defined()) check_bias(bias, weight);
  if (!rows.is_cpu()) {
    at::Tensor out = multiply_groups(rows, weight.transpose(1, 2), sizes, group_form(rows, weight));
    if (bias.defined()) add_grouped_bias(out, bias, sizes);
    return out;
  }
  const std::vector<Span> groups = group_rows(sizes, rows.size(0));
  const at::Tensor out = at::empty({rows.size(0), weight.size(1)}, rows.options());
  const bool is_float = rows.scalar_type() == at::kFloat;
  run_tiles(result_tiles(groups, out.size(1), compiles_shapes(rows)), [&](const Tile& tile) {
    if (is_float && groups[static_cast<size_t>(tile.group)].size <= kFewRows) {
      multiply_few(rows, weight, out, tile);
    } else {
      at::Tensor target = part(out, tile.rows, tile.columns);
      at::mm_out(target, rows.narrow(0, tile.rows.begin, tile.rows.size),
                 weight.select(0, tile.group).narrow(0, tile.columns.begin, tile.columns.size).t());
    }
    if (bias.defined())
      add_bias_part_cpu(out, bias, {.group = tile.group, .row = tile.rows.begin, .rows = tile.rows.size, .begin = tile.columns.begin,
                                    .end = tile.columns.begin + tile.columns.size});
  });
  return out;
}

at::Tensor grouped_multiply_input(const at::Tensor& dy, const at::Tensor& weight, std::span<const int64_t> sizes) {
  check_operands(dy, weight, sizes, weight.size(1));
  if (!dy.is_cpu()) return multiply_groups(dy, weight, sizes, group_form(dy, weight));
  const std::vector<Span> groups = group_rows(sizes, dy.size(0));
  const at::Tensor out = at::empty({dy.size(0), weight.size(2)}, dy.options());
  run_tiles(result_tiles(groups, out.size(1), compiles_shapes(dy)), [&](const Tile& tile) {
    at::Tensor target = part(out, tile.rows, tile.columns);
    at::mm_out(target, dy.narrow(0, tile.rows.begin, tile.rows.size),
               weight.select(0, tile.group).narrow(1, tile.columns.begin, tile.columns.size));
  });
  return out;
}

void accumulate_grouped(const at::Tensor& dy, const at::Tensor& x, std::span<const int64_t> sizes, const at::Tensor& grad) {
  check_operands(dy, grad, sizes, grad.size(1));
  LOCKSTEP_CHECK_EQ(x.size(1), grad.size(2), "columns of x and gradient");
  LOCKSTEP_CHECK_EQ(x.size(0), dy.size(0), "rows of x and dy");
  if (!dy.is_cpu()) return accumulate_groups(dy, x, sizes, grad, group_form(dy, x));
  const std::vector<Span> groups = group_rows(sizes, dy.size(0));
  std::vector<Tile> tiles;  // of the gradients: rows are those of grad[group]
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].size == 0) continue;
    for (const Span& rows : cut({.begin = 0, .size = grad.size(1)}, kTileRows))
      for (const Span& columns : cut({.begin = 0, .size = grad.size(2)}, kTileColumns))
        tiles.push_back({.group = static_cast<int64_t>(group), .rows = rows, .columns = columns});
  }
  run_tiles(tiles, [&](const Tile& tile) {
    const at::Tensor target = part(grad.select(0, tile.group), tile.rows, tile.columns);
    const Span& group = groups[static_cast<size_t>(tile.group)];
    for (const Span& depth : cut_rows(group, group.size, compiles_shapes(dy))) {
      const at::Tensor a = part(dy, depth, tile.rows).t(), b = part(x, depth, tile.columns);
      if (dy.scalar_type() == at::kFloat)
        target.addmm_(a, b);
      else
        add_cast_part_cpu(target, at::mm(a, b));
    }
  });
}

}  // namespace lockstep::nn
