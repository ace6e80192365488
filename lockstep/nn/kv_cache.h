// What generation keeps of a layer, keys and values of tokens or a state, and which tokens a call appends to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/nn/decode_context.h"
#include "lockstep/nn/token_places.h"

namespace lockstep::nn {

class PieceExchange;  // piece_exchange.h

// Of one layer. Keys and values of attention: `slots` sequences, each with room for `capacity` tokens. Latent attention keeps latents
// and rotated keys, [slots, 1, capacity, C + R], and k and v are one tensor.
struct KvCacheLayer {
  at::Tensor k;  // [slots, KV, capacity, K]
  at::Tensor v;  // [slots, KV, capacity, K]
  // Of a state space, which keeps no tokens; undefined elsewhere, and there k and v are. A slot that begins anew begins with zeros. Where
  // tokens are held in parts, each has all of these.
  at::Tensor columns{};  // [slots, W - 1, x | B | C]: of the last tokens, what the convolution takes, the newest last
  at::Tensor state{};    // [slots, H, P, N] fp32: behind the last token
  // Who passes on the states of a prompt that is cut. Null: no prompt is.
  std::shared_ptr<PieceExchange> pieces{};
  // Who brings together what is seen of tokens here and elsewhere. Null: all tokens of a slot are here.
  std::shared_ptr<DecodeContext> context{};
};

// Rows of x that lie and stand one behind the other.
struct PositionRun {
  int64_t row = 0;
  int64_t count = 0;
  int64_t position = 0;  // of the first
};

// Of a sequence that is held in parts, which of its tokens are here and which of the new ones stay here.
struct CachePart {
  int64_t held = 0;                            // tokens of the slot that are here before
  std::vector<int64_t> kept{};                 // the rows that stay here behind them, ascending
  const std::vector<int32_t>* here = nullptr;  // where the tokens here stand in the sequence, with those kept; ascending
  std::vector<PositionRun> runs{};             // all rows
  const TokenPlaces* places = nullptr;         // of rows that are cut, a part of the new tokens; null: the rows are all new tokens
};

// Tokens start .. start + T - 1 of the sequence in `slot`; those before them are in the cache.
struct CacheSpan {
  int64_t slot = 0;
  int64_t start = 0;
  const CachePart* part = nullptr;  // null: all tokens of the slot are here
};

// Where the T rows of x that belong to `span` stand.
std::vector<PositionRun> runs_of(const CacheSpan& span, int64_t rows);

// Writes k and v [B, T, KV, K], sequence b at spans[b], to the cache: all rows, or those that stay here.
void append_to_cache(const at::Tensor& k, const at::Tensor& v, const KvCacheLayer& cache, std::span<const CacheSpan> spans);

// All sequences begin here, and see nothing in the cache but themselves.
bool are_prompts(std::span<const CacheSpan> spans);
// Of all rows of a call, where they are cut; null: they are not. Only prompts are.
const TokenPlaces* cut_places(std::span<const CacheSpan> spans);

}  // namespace lockstep::nn
