// Where the tokens of a microbatch stand in their sequences, and which tokens each sees: what is cut together with them, so that no layer
// concludes from where a token lies in memory what its position is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/nn/key_spans.h"

namespace lockstep::nn {

// Of B sequences of `length` tokens those T that are here; T is the same on all ranks of cp. Where 2 cp pieces (or cp) do not divide
// `length` a sequence is filled up behind its end: such tokens have index >= length, see themselves alone, and count nowhere.
// Immutable once made; shared by all layers and by what they keep.
struct TokenPlaces {
  int64_t length = 0;     // S: of whole sequences
  at::Tensor positions;   // [B, T] int64, where the tokens are: what rotary and learned positions take
  at::Tensor index;       // [B, T] int32 of the host: place in the sequence, ascending
  at::Tensor first_seen;  // [B, T] int32 of the host: the place of the first token that it may see, where its document begins
  int rank = 0;           // of cp
  // By rank of cp the `index` of its tokens, [B, T] int32 of the host; with one rank none: all keys are here.
  std::vector<at::Tensor> index_of_ranks{};
  // [B, length] int32 of the host: `first_seen` of every place of the sequences, whoever has it. Undefined: with one rank.
  at::Tensor first_seen_of_places{};
  // Every sequence is one document that is whole and in order: first_seen is 0, positions are places.
  bool plain = false;

  int ranks() const { return index_of_ranks.empty() ? 1 : static_cast<int>(index_of_ranks.size()); }
};

// What the tokens here see of those that `rank` of cp holds. `window`: tokens that a query sees, itself included; 0: all.
KeySpans spans_of(const TokenPlaces& places, int rank, int64_t window = 0);
// The same of whole sequences, all keys in the order of the sequence: [0, length) of each.
KeySpans spans_of_all(const TokenPlaces& places, int64_t window = 0);

}  // namespace lockstep::nn
