// What the passes of the scan do with a block of tokens on the CPU beside its products: packing, decays, masks. Buffers are fp32,
// aligned to 64 bytes, of 64 rows or their tokens' number rounded up to 16; rows behind the tokens are zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/nn/state_space_core.h"
#include "lockstep/nn/state_space_cpu_tiles.h"

namespace lockstep::nn::scan_cpu {

struct Sizes {
  explicit Sizes(const Scan& scan);
  int64_t batch, tokens, heads, groups, channels, numbers;  // B, T, H, G, P, N
  int64_t p, n;         // P and N padded
  int64_t length;       // tokens of a piece
  int64_t chunk, chunks;  // tokens of a chunk; chunks of a piece
  int64_t block;        // tokens of a block
  int64_t pieces;
};

// A unit of work: up to 8 heads of one group share C B^T and fit in the core's cache with their states. How heads are divided depends on
// their number alone, and with it the order of sums over the heads of a group.
struct Part {
  int64_t batch, piece, group, index;  // index: which of its group
  int64_t head, heads;                 // first, number
};
class Parts {
 public:
  explicit Parts(const Sizes& sizes);
  int64_t of_group() const { return of_group_; }
  int64_t count() const { return count_; }
  int64_t most_heads() const { return (heads_ + of_group_ - 1) / of_group_; }
  Part operator[](int64_t i) const;

 private:
  int64_t heads_, groups_, pieces_, of_group_, count_;
};

// Rows in memory of fp32 or bf16: row s at data + s * stride elements.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};
// x [B, T, heads, columns]: of one sequence and head, from token `token` on.
template <typename T>
Rows<const T> rows_of(const at::Tensor& x, int64_t batch, int64_t token, int64_t head) {
  return {x.const_data_ptr<T>() + batch * x.stride(0) + token * x.stride(1) + head * x.stride(2), x.stride(1)};
}
template <typename T>
Rows<T> mutable_rows_of(const at::Tensor& x, int64_t batch, int64_t token, int64_t head) {
  return {x.data_ptr<T>() + batch * x.stride(0) + token * x.stride(1) + head * x.stride(2), x.stride(1)};
}

// Tokens of one block, and which of them see which: token t sees those from the last document's begin at or before it, and what lies before
// the block where there is none.
struct Tokens {
  Tokens(const Scan& scan, int64_t batch, int64_t first_token, int64_t count);
  int64_t batch, token, count, rows;  // rows: count rounded up to 16
  int32_t begin[kBlock];              // by token: the last begin at or before it within the block, or -1
  bool ends_document() const { return begin[count - 1] >= 0; }  // what lies before the block is not seen behind it
};
// Those of one chunk, in their order.
std::vector<Tokens> blocks_of(const Scan& scan, const Sizes& sizes, const Part& part, int64_t chunk);

// Decays of one head within a block: powers of e that are sums of a delta, none above zero. Sums begin anew with each tile of 16 tokens, so
// that a difference of two of them keeps its digits.
struct Decays {
  alignas(64) float delta[kBlock];  // zero behind the tokens
  alignas(64) float sum[kBlock];    // of a delta from the tile's first token up to this one
  float tile[kBlock / kUnit];       // of all of a tile
  alignas(64) float in[kBlock];     // decay of the state before the block, up to the token
  alignas(64) float out[kBlock];    // of the token, up to the end of the block
  float whole;                      // of the state before the block, up to its end
  float power;                      // of `whole`, without what documents hide
};
// delta [count] at a distance of `stride`.
void decays_of(const float* delta, int64_t stride, float a, const Tokens& tokens, Decays& decays);

// Brings rows to the cache that are needed in a while: they lie too far apart for the processor to see the next one coming.
template <typename T>
void prefetch(const Rows<T>& rows, const Tokens& tokens, int64_t columns) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < tokens.count; ++row)
    for (int64_t i = 0; i < columns; i += kLine) __builtin_prefetch(rows.data + row * rows.stride + i);
}

// from [count, columns] -> to [rows, padded columns], where defined times row_scale.
void pack(const Rows<const float>& from, const Tokens& tokens, int64_t columns, const float* row_scale, float* to);
void pack(const Rows<const c10::BFloat16>& from, const Tokens& tokens, int64_t columns, const float* row_scale, float* to);
void scale_rows(const float* from, const float* row_scale, int64_t rows, int64_t columns, float* to);

// The lower triangle of scores = C B^T, by which token t [row] sees token s [column]: masked = scores * decay, and decay by itself where it is
// not null. 16 x 16 tiles above the diagonal are not touched.
void mask(const float* scores, const Decays& decays, const Tokens& tokens, float* masked, float* decay);

// to [count, columns] = from [rows, padded columns] + d x.
void put(const float* from, const Tokens& tokens, int64_t columns, float d, const Rows<const float>& x, const Rows<float>& to);
void put(const float* from, const Tokens& tokens, int64_t columns, float d, const Rows<const c10::BFloat16>& x, const Rows<c10::BFloat16>& to);
void put(const float* from, const Tokens& tokens, int64_t columns, const Rows<float>& to);
void put(const float* from, const Tokens& tokens, int64_t columns, const Rows<c10::BFloat16>& to);

// body(T{}) with T the element type of x.
template <typename Body>
void of_dtype(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat)
    body(float{});
  else
    body(c10::BFloat16{});
}

// The state of a head [P, N] in memory as packed: [padded P, padded N], or its transpose.
void pack_state(const float* state, const Sizes& sizes, float* to);
void pack_state_transposed(const float* state, const Sizes& sizes, float* to);
void put_state(const float* from, const Sizes& sizes, float* state);
void put_state_transposed(const float* from, const Sizes& sizes, float* state);

}  // namespace lockstep::nn::scan_cpu
