// Generation over the ranks of cp: who keeps which token's keys and values, and how the ranks see all of them. A long prompt is cut over
// the ranks as a sequence of training is; a token that is added, or a short prompt, runs on every rank and is kept by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/attention_decode.h"
#include "lockstep/nn/token_places.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/program/call.h"

namespace lockstep::model {

// By rank of cp the tokens of one slot. Every rank knows all of it, so nobody has to be asked.
class TokenOwners {
 public:
  explicit TokenOwners(int ranks) : places_(static_cast<size_t>(ranks)) {}

  int64_t length() const { return length_; }
  const std::vector<int32_t>& places(int rank) const { return places_.at(static_cast<size_t>(rank)); }  // where its tokens stand, ascending
  int64_t held(int rank) const { return static_cast<int64_t>(places(rank).size()); }
  // Tokens [0, length) are left; nothing where there are no more.
  void truncate(int64_t length);
  void add(int rank);
  // The next token goes to the first of the ranks that have the fewest. -> that rank
  int add_to_emptiest();

  // The most tokens of `capacity` that a rank has, whatever was cut, added and forgotten: its share, and one where a prompt was cut in
  // 2 cp pieces.
  static int64_t most(int64_t capacity, int ranks) { return (capacity + ranks - 1) / ranks + 1; }

 private:
  std::vector<std::vector<int32_t>> places_;
  int64_t length_ = 0;
};

// Tokens that are appended to some slots, as one rank sees them.
struct ContextStep {
  std::vector<nn::CachePart> parts;         // by sequence; they refer to `places` and to the slots
  std::unique_ptr<nn::TokenPlaces> places;  // where the rows are cut over the ranks
  int last_rank = 0;                        // where the last row of every sequence is computed ...
  int64_t last_row = 0;                     // ... and which of the rows here it is; on the other ranks any
};

// T tokens behind those of each slot, which they are added to. They are cut where all slots are empty and T is at least 2 cp.
ContextStep context_step(const std::vector<TokenOwners*>& slots, int64_t tokens, const parallel::ContextGroup& group, at::Device device);

// x [n, D], of which that of `rank` counts -> the same bits on every rank. Collective.
at::Tensor rows_of_rank(const at::Tensor& x, int rank, parallel::ContextGroup& group);

// Of the attention of one block; `part` names its calls. The group outlives it.
std::shared_ptr<nn::DecodeContext> make_decode_context(parallel::ContextGroup& group, const program::CallId& block, const std::string& part);

}  // namespace lockstep::model
