#include "lockstep/checkpoint/box.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {

int64_t volume(const Sizes& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product))
      throw DataError({.code = "LS1302", .what = cat("impossible tensor shape ", shape_text(shape))});
  }
  return product;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  LOCKSTEP_CHECK_EQ(a.shape.size(), b.shape.size());
  Box common;
  for (size_t dim = 0; dim < a.shape.size(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.shape[dim], b.offset[dim] + b.shape[dim]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

bool lies_in(const Box& box, const Sizes& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offset[dim] < 0 || box.shape[dim] <= 0 || box.shape[dim] > shape[dim] ||
        box.offset[dim] > shape[dim] - box.shape[dim])
      return false;
  }
  return true;
}

std::string shape_text(const Sizes& sizes) {
  std::vector<std::string> parts;
  for (const int64_t size : sizes) parts.push_back(std::to_string(size));
  return cat("[", join(parts, ", "), "]");
}

}  // namespace lockstep::checkpoint
