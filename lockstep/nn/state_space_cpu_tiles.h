// Products of small matrices in cache, of which the scan of a state space is made on the CPU, with what each needs besides: a row's
// scale, a triangle. Every function is compiled for several instruction sets (vector_math.h). All matrices are fp32 and aligned to 64
// bytes, rows and columns are multiples of 16.
#pragma once

#include <cstdint>

namespace lockstep::nn::scan_cpu {

constexpr int64_t kBlock = 64;  // tokens of a block: rows of score matrices
constexpr int64_t kUnit = 16;   // rows and columns are padded to multiples of it

constexpr int64_t padded(int64_t n) { return (n + kUnit - 1) / kUnit * kUnit; }

// A matrix in memory: element (i, j) at data[i * row + j * column].
struct Matrix {
  const float* data;
  int64_t row;
  int64_t column;
};

// Which depths a row takes, of the matrix at the left: the others are zero in it.
enum class Depths {
  kAll,
  kUpToRow,  // a lower triangle
  kFromRow,  // an upper one
};

// left [rows, depth] right [depth, columns], right with rows of right_row elements.
struct Product {
  Matrix left;
  const float* right;
  int64_t right_row;
  int64_t depth;
  Depths depths = Depths::kAll;
};
struct Result {
  float* data;
  int64_t row;  // elements
  int64_t rows;
  int64_t columns;
};

// to = diag(row_scale) product; null: without scale.
void multiply(const Product& product, const float* row_scale, const Result& to);
// to = keep * to + product.
void add(const Product& product, float keep, const Result& to);
// The lower triangle alone, with all of its 16 x 16 tiles on the diagonal: to [rows, rows], rows up to 64.
void multiply_lower(const Product& product, const Result& to);

// from [rows, columns] -> to [columns, rows], of any size and alignment; `from_row` and `to_row` elements.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row);

}  // namespace lockstep::nn::scan_cpu
