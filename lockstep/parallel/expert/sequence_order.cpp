#include "lockstep/parallel/expert/sequence_order.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/upload.h"

namespace lockstep::parallel {

at::Tensor in_order_of_sequences(const at::Tensor& parts, const nn::TokenPlaces& places) {
  const int64_t ranks = parts.size(0), rows = parts.size(1), width = parts.size(2), sequences = places.index.size(0);
  LOCKSTEP_CHECK_EQ(ranks, places.ranks(), "ranks of cp");
  LOCKSTEP_CHECK_EQ(ranks * rows, sequences * places.length, "rows of ", sequences, " sequences on ", ranks, " ranks");
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(ranks * rows));
  for (const at::Tensor& index : places.index_of_ranks) {
    LOCKSTEP_CHECK(index.is_contiguous() && index.numel() == rows, index.numel(), " places of ", rows, " rows");
    const int32_t* const place = index.const_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows; ++row) order.push_back(row / index.size(1) * places.length + place[row]);
  }
  const at::Tensor whole = at::empty({ranks * rows, width}, parts.options());
  return whole.index_copy_(0, nn::upload(std::span<const int64_t>(order), parts.device()), parts.view({ranks * rows, width}));
}

}  // namespace lockstep::parallel
