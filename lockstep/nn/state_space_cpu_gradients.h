// What the scan's backward does with a block of one head on the CPU beside its products (state_space_cpu_tiles.h) and what forward does too
// (state_space_cpu_blocks.h).
#pragma once

#include <cstdint>

#include "lockstep/nn/state_space_cpu_blocks.h"

namespace lockstep::nn::scan_cpu {

// Of each token of a block: parts of the gradients of its power a delta and of its delta.
struct TokenSums {
  alignas(64) float seeing[kBlock];  // of the pairs (t, s), s < t, with t the token: sum(gradient of the decay from s to t, times it)
  alignas(64) float seen[kBlock];    // of the pairs with s the token
  alignas(64) float before[kBlock];  // the same of the state before the block, which the token sees
  alignas(64) float behind[kBlock];  // the same of the state behind it, to which the token gives
  alignas(64) float inputs[kBlock];  // sum(x * gradient of delta x)
};

// The lower triangle: gradients of masked scores become those of scores = C B^T, added to dscores; `seeing` and `seen` are written.
void scores_backward(const float* dmasked, const float* decay, const float* scores, int64_t rows, float* dscores, TokenSums& sums);
// dots[row] = sum of a * b over a row [rows, columns].
void dot_rows(const float* a, const float* b, int64_t rows, int64_t columns, float* dots);
// The same, and to += a.
void add_and_dot_rows(const float* a, const float* b, int64_t rows, int64_t columns, float* to, float* dots);
float dot(const float* a, const float* b, int64_t size);

// dx = delta dinputs + d dy, and TokenSums::inputs; the sum of x * dy is returned. dinputs, dy: [rows, padded columns].
float put_dx(const float* dinputs, const float* dy, const Decays& decays, const Tokens& tokens, int64_t columns, float d, const Rows<const float>& x,
             const Rows<float>& dx, TokenSums& sums);
float put_dx(const float* dinputs, const float* dy, const Decays& decays, const Tokens& tokens, int64_t columns, float d,
             const Rows<const c10::BFloat16>& x, const Rows<c10::BFloat16>& dx, TokenSums& sums);

// to [columns] = the sum of `parts` rows, `part` elements apart, one after the other.
void sum_parts(const float* from, int64_t parts, int64_t part, int64_t columns, float* to);
void sum_parts(const float* from, int64_t parts, int64_t part, int64_t columns, c10::BFloat16* to);

}  // namespace lockstep::nn::scan_cpu
