// Collective algorithms, written once over a Link's send and recv: what each does step by step is defined in
// program/ledger.h. `numel` is that of the full buffer, cut into chunks by mesh::shard_range. Additions have a fixed
// order and all ranks end with the same bits: every element is summed by one rank only, or by all in rank order.
//
// Where the backend has a board, what on_board() names is made on it: the same sums, the same sends, fewer waits and copies.
//
// Papers: Patarasuk and Yuan 2009 (ring); Thakur, Rabenseifner and Gropp 2005 (binomial tree, halving and doubling).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/elements.h"
#include "lockstep/comm/link.h"
#include "lockstep/program/ledger.h"

namespace lockstep::comm {

// A tensor as its bytes.
struct Elements {
  std::byte* data = nullptr;
  int64_t numel = 0;
  size_t size = 0;  // bytes of one
};

bool on_board(program::Collective collective, program::Algorithm algorithm);

void all_reduce(Link& link, program::Algorithm algorithm, const Elements& buffer, const Reduction& reduction);
// In place: the buffers of the other ranks hold partial sums afterwards.
void reduce(Link& link, program::Algorithm algorithm, const Elements& buffer, int root, Combine combine);
void broadcast(Link& link, program::Algorithm algorithm, const Elements& buffer, int root);
// In place: this rank's chunk is there already.
void all_gather(Link& link, program::Algorithm algorithm, const Elements& buffer);
// `input` is left as it is, unless `output` lies in it.
void reduce_scatter(Link& link, program::Algorithm algorithm, const Elements& input, std::byte* output,
                    const Reduction& reduction);
void all_to_all(Link& link, const Elements& input, std::byte* output);
// Parts lie side by side in `input` and `output`, in rank order.
void all_to_all_v(Link& link, const Elements& input, std::byte* output, const PartSizes& parts);
void shift(Link& link, const Elements& input, std::byte* output, int by);  // so many ranks further
// `full` counts on root only, `part` is this rank's chunk; chunks of equal size.
void gather(Link& link, const std::byte* part, const Elements& full, int root);
void scatter(Link& link, const Elements& full, std::byte* part, int root);
void barrier(Link& link);

}  // namespace lockstep::comm
