// Which heads each of several ranks has of those that all have together: arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/mesh/placement.h"

namespace lockstep::parallel {

// H query heads over n ranks, ceil(H / n) each, the last ones empty where n does not divide H; of the KV key heads each rank has those
// that its query heads read, one of them on several ranks where it must be. Messages have room for the most that any rank has.
class HeadParts {
 public:
  HeadParts(int64_t heads, int64_t kv_heads, int ranks);  // KV divides H

  int ranks() const { return ranks_; }
  int64_t heads_each() const { return each_; }    // with empty ones
  int64_t kv_heads_each() const { return kv_each_; }
  mesh::Range heads_of(int rank) const;     // without empty ones; may be none
  mesh::Range kv_heads_of(int rank) const;
  // By query head of a rank which of its key heads it reads; empty where these are equal groups one behind the other.
  std::vector<int64_t> reads_of(int rank) const;

 private:
  const int64_t heads_, kv_heads_;
  const int ranks_;
  const int64_t each_;
  int64_t kv_each_ = 1;
};

}  // namespace lockstep::parallel
