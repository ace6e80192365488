// How a length is cut into shards.
#pragma once

#include <cstdint>

namespace lockstep::mesh {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `length` cut into `parts`: contiguous, in order, sizes differ by at most one (the first ones longer).
Range shard_range(int64_t length, int parts, int index);

// The same in parts of ceil(length / parts): what lies behind the last element is padding, so the last parts may be
// shorter or empty, and equal buffers side by side hold the whole without a gap.
Range padded_range(int64_t length, int parts, int index);
int64_t padded_part(int64_t length, int parts);  // ceil(length / parts)

}  // namespace lockstep::mesh
