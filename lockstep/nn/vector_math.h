// Sixteen floats at a time, in GCC's vector extension: one code for every width of the processor's registers. For the
// bodies of functions marked LOCKSTEP_CLONES alone, into which all of it is inlined.
#pragma once

#include <c10/util/BFloat16.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

// Compiled for several instruction sets; the processor's best is chosen when the program is loaded. Sanitizers do not
// work in that early code.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_CLONES
#endif
#define LOCKSTEP_INLINE __attribute__((always_inline)) inline

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call: everything is inlined

namespace lockstep::nn::vec {

constexpr int64_t kLanes = 16;
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));

LOCKSTEP_INLINE Floats splat(float value) { return value - Floats{}; }

LOCKSTEP_INLINE void load(const float* from, int64_t count, Floats& to) {
  if (count >= kLanes)
    std::memcpy(&to, from, sizeof to);
  else
    std::memcpy(&to, from, static_cast<size_t>(count) * sizeof(float));
}

LOCKSTEP_INLINE void store(float* to, int64_t count, const Floats& from) {
  if (count >= kLanes)
    std::memcpy(to, &from, sizeof from);
  else
    std::memcpy(to, &from, static_cast<size_t>(count) * sizeof(float));
}

// bf16 is the upper half of a float. (A memcpy of a length that is known is a move; of any other, a call.)
LOCKSTEP_INLINE void load(const c10::BFloat16* from, int64_t count, Floats& to) {
  Halves halves;
  if (count >= kLanes) {
    std::memcpy(&halves, from, sizeof halves);
  } else {
    halves = __builtin_convertvector(reinterpret_cast<Words>(to) >> 16, Halves);
    std::memcpy(&halves, from, static_cast<size_t>(count) * 2);
  }
  to = reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}

// Rounds to nearest, ties to even.
LOCKSTEP_INLINE void store(c10::BFloat16* to, int64_t count, const Floats& from) {
  const Words bits = reinterpret_cast<Words>(from);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words nan = Words{} + 0x7fc0;
  const Halves halves = __builtin_convertvector(from == from ? rounded : nan, Halves);
  if (count >= kLanes)
    std::memcpy(to, &halves, sizeof halves);
  else
    std::memcpy(to, &halves, static_cast<size_t>(count) * 2);
}

LOCKSTEP_INLINE float sum(const Floats& x) {
  float total = 0;
  for (int64_t i = 0; i < kLanes; ++i) total += x[i];
  return total;
}

LOCKSTEP_INLINE float max(const Floats& x) {
  float most = x[0];
  for (int64_t i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// e^x to about 2 ulp: 2^n e^r with |r| <= ln 2 / 2. Beyond +-87 it stays at e^+-87; NaN stays NaN.
LOCKSTEP_INLINE Floats exp(const Floats& power) {
  Floats x = power < -87.0f ? splat(-87.0f) : power;
  x = x > 87.0f ? splat(87.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Ints exponent = (reinterpret_cast<Ints>(shifted) - std::bit_cast<int32_t>(kRound) + 127) << 23;
  return p * reinterpret_cast<Floats>(exponent);
}

}  // namespace lockstep::nn::vec

#pragma GCC diagnostic pop
