// Which tokens of a sequence each rank of cp holds, and how much of attention's work that gives it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::data {

struct TokenSplit {
  int ranks = 1;
  config::ContextSplit split = config::ContextSplit::kZigzag;
  // Zigzag is that of the whole sequence whatever the documents are: state spaces pass their states from one piece of consecutive tokens
  // to the next, and all pieces are of one length.
  bool whole_pieces = false;
};

// By rank the places of its tokens, ascending, as many on every rank; places from `length` on fill up behind the end. `documents`: where
// each begins, the first at 0; one: the sequence is one document. Contiguous cuts at equal places whatever they are; zigzag balances the
// work of causal attention inside documents. One rank has all places, and no fill.
//
// Zigzag of several documents, without whole_pieces: that of the sequence where it gives no rank more than 1.02 times the mean work; else each document of
// enough tokens is a zigzag of its own, and what is left is dealt out in pieces, the densest in work first, each to the rank with the
// least work that has room; of both the one whose busiest rank has less work.
std::vector<std::vector<int32_t>> split_tokens(int64_t length, const TokenSplit& split, std::span<const int32_t> documents);

// By rank how many pairs of a query and a key its queries see; `window`: tokens that a query sees at most, 0: all of its document up to it.
// A place behind the end sees itself.
std::vector<int64_t> attention_pairs(int64_t length, const std::vector<std::vector<int32_t>>& places, std::span<const int32_t> documents,
                                     int64_t window = 0);

}  // namespace lockstep::data
