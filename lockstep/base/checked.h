// Products and sums of sizes that come from outside: made here, and not with * and +, wherever no bound on them is known yet.
// What leaves 64 bits stands at their end, so that comparing it with a bound refuses it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep {

inline constexpr int64_t kBeyond64Bits = std::numeric_limits<int64_t>::max();

// a * b and a + b of numbers >= 0; kBeyond64Bits where that is larger.
inline int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kBeyond64Bits : product;
}
inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kBeyond64Bits : sum;
}

// "4294967296", and in words where saturating_mul() or saturating_add() has found it beyond 64 bits.
inline std::string size_text(int64_t size) { return size == kBeyond64Bits ? "more than 64 bits hold" : cat(size); }

}  // namespace lockstep
