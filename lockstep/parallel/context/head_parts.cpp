#include "lockstep/parallel/context/head_parts.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::parallel {

HeadParts::HeadParts(int64_t heads, int64_t kv_heads, int ranks) : heads_(heads), kv_heads_(kv_heads), ranks_(ranks), each_(mesh::padded_part(heads, ranks)) {
  LOCKSTEP_CHECK(kv_heads > 0 && heads % kv_heads == 0, heads, " heads that read ", kv_heads);
  for (int rank = 0; rank < ranks; ++rank) kv_each_ = std::max(kv_each_, kv_heads_of(rank).size());
}

mesh::Range HeadParts::heads_of(int rank) const { return mesh::padded_range(heads_, ranks_, rank); }

mesh::Range HeadParts::kv_heads_of(int rank) const {
  const mesh::Range here = heads_of(rank);
  const int64_t group = heads_ / kv_heads_;
  return {.begin = here.begin / group, .end = (here.end + group - 1) / group};
}

std::vector<int64_t> HeadParts::reads_of(int rank) const {
  const mesh::Range here = heads_of(rank);
  const int64_t group = heads_ / kv_heads_, first = kv_heads_of(rank).begin;
  std::vector<int64_t> reads(static_cast<size_t>(each_));  // empty heads read the first one
  bool equal_groups = each_ % kv_each_ == 0;
  for (int64_t i = 0; i < here.size(); ++i) {
    reads[static_cast<size_t>(i)] = (here.begin + i) / group - first;
    equal_groups = equal_groups && reads[static_cast<size_t>(i)] == i / (each_ / kv_each_);
  }
  if (equal_groups) reads.clear();
  return reads;
}

}  // namespace lockstep::parallel
