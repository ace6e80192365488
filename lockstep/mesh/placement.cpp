#include "lockstep/mesh/placement.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::mesh {

Range shard_range(int64_t length, int parts, int index) {
  LOCKSTEP_CHECK(length >= 0 && parts >= 1 && index >= 0 && index < parts, "length ", length, ", part ", index, " of ",
                 parts);
  const int64_t size = length / parts;
  const int64_t longer = length % parts;  // so many parts have one more
  const int64_t begin = index * size + std::min<int64_t>(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

int64_t padded_part(int64_t length, int parts) {
  LOCKSTEP_CHECK(length >= 0 && parts >= 1, "length ", length, " in ", parts, " parts");
  return (length + parts - 1) / parts;
}

Range padded_range(int64_t length, int parts, int index) {
  LOCKSTEP_CHECK(index >= 0 && index < parts, "part ", index, " of ", parts);
  const int64_t part = padded_part(length, parts);
  return {std::min(index * part, length), std::min((index + 1) * part, length)};
}

}  // namespace lockstep::mesh
