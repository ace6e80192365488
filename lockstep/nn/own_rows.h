// Which of the rows whose scores are known are routed here: a stretch of them, or, of sequences that are here in parts, some of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/routing.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

class OwnRows {
 public:
  explicit OwnRows(mesh::Range range) : begin_(range.begin), size_(range.size()) {}
  // `range` of the B T rows here, among the B S rows of whole sequences: row b T + t is row b S + places.index[b, t] there. `device`:
  // where the matrices are.
  OwnRows(mesh::Range range, const TokenPlaces& places, at::Device device);

  int64_t size() const { return size_; }
  // all [rows, N] -> [T, N]: the same memory where they are a stretch.
  at::Tensor of(const at::Tensor& all) const;
  // The same, and memory of its own; where there are no other rows, `all` itself.
  at::Tensor copy_of(const at::Tensor& all) const;
  // sort_by_expert of `assignments`, by row, of all rows.
  Routing sort(std::span<const Assignment> assignments, int64_t experts) const;

 private:
  int64_t begin_ = 0;
  int64_t size_ = 0;
  std::vector<int64_t> whole_{};  // [T] which row each is, ascending; empty: a stretch
  at::Tensor index_{};            // the same on the device
};

}  // namespace lockstep::nn
