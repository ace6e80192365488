#include "lockstep/nn/own_rows.h"

#include "lockstep/base/check.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {

OwnRows::OwnRows(mesh::Range range, const TokenPlaces& places, at::Device device) : begin_(range.begin), size_(range.size()) {
  const int64_t here = places.index.size(1), all = places.index.numel();
  LOCKSTEP_CHECK(places.index.is_contiguous() && range.begin >= 0 && range.end <= all, "rows up to ", range.end, " of ", all);
  whole_.reserve(static_cast<size_t>(size_));
  const int32_t* const index = places.index.const_data_ptr<int32_t>();
  for (int64_t row = range.begin; row < range.end; ++row) whole_.push_back(row / here * places.length + index[row]);
  index_ = upload(std::span<const int64_t>(whole_), device);
}

at::Tensor OwnRows::of(const at::Tensor& all) const {
  return index_.defined() ? all.index_select(0, index_) : all.narrow(0, begin_, size_);
}

at::Tensor OwnRows::copy_of(const at::Tensor& all) const {
  if (all.size(0) == size_) return all;
  return index_.defined() ? of(all) : of(all).clone();
}

Routing OwnRows::sort(std::span<const Assignment> assignments, int64_t experts) const {
  if (!index_.defined()) return sort_by_expert(assignments, {.begin = begin_, .end = begin_ + size_}, experts);
  std::vector<Assignment> own;
  int64_t row = 0;  // of those here, as both ascend
  for (const Assignment& a : assignments) {
    while (row < size_ && whole_[static_cast<size_t>(row)] < a.row) ++row;
    if (row == size_) break;
    if (whole_[static_cast<size_t>(row)] != a.row) continue;
    own.push_back(a);
    own.back().row = row;
  }
  return sort_by_expert(own, {.begin = 0, .end = size_}, experts);
}

}  // namespace lockstep::nn
