#include "lockstep/plan/time/small_solve.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::plan {
namespace {

// A becomes the unit matrix, and every column of b the solution for it.
void eliminate(Matrix& a, Matrix& b) {
  const size_t n = a.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row)
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    LOCKSTEP_CHECK(a[pivot][column] != 0 && std::isfinite(a[pivot][column]), "column ", column, " of ", n, " depends on the others");
    std::swap(a[pivot], a[column]);
    std::swap(b[pivot], b[column]);
    const double scale = a[column][column];
    for (double& value : a[column]) value /= scale;
    for (double& value : b[column]) value /= scale;
    for (size_t row = 0; row < n; ++row) {
      const double factor = a[row][column];
      if (row == column || factor == 0) continue;
      for (size_t i = 0; i < n; ++i) a[row][i] -= factor * a[column][i];
      for (size_t i = 0; i < b[row].size(); ++i) b[row][i] -= factor * b[column][i];
    }
  }
}

}  // namespace

std::vector<double> solve(Matrix a, std::vector<double> b) {
  LOCKSTEP_CHECK_EQ(a.size(), b.size());
  Matrix right;
  for (const double value : b) right.push_back({value});
  eliminate(a, right);
  for (size_t i = 0; i < b.size(); ++i) b[i] = right[i][0];
  return b;
}

Matrix inverted(const Matrix& a) {
  Matrix copy = a, result(a.size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) result[i][i] = 1;
  eliminate(copy, result);
  return result;
}

}  // namespace lockstep::plan
