// Linear equations of a few unknowns.
#pragma once

#include <vector>

namespace lockstep::plan {

using Matrix = std::vector<std::vector<double>>;  // rows

// x of A x = b by Gauss with pivots. InternalError where A is singular.
std::vector<double> solve(Matrix a, std::vector<double> b);
Matrix inverted(const Matrix& a);

}  // namespace lockstep::plan
