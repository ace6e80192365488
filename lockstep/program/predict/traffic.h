// What a rank puts on the links in one step; which ranks have the same traffic; and what the literature says of that of data parallelism and ZeRO, beside what a
// layout's programs predict: bytes of one step and one rank, whose stage of the pipeline and part over tp they are of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/program/planned_calls.h"

namespace lockstep::program {

// The calls of an action, and how often the rank's list has it: all microbatches make the same.
struct RepeatedCalls {
  Action action{};  // without its microbatch
  int64_t times = 0;
  std::vector<CallOfRank> calls{};
};
// In the order in which the list comes to them.
std::vector<RepeatedCalls> repeated_calls(const Layout& layout, const Program& program, int rank);

// The ledger of one step of `rank`: all planned calls. Empty for one rank.
Ledger predict_ledger(const Layout& layout, const Program& program, int rank);

// What the literature says of one synchronisation of S bytes of gradients over n ranks, in bytes.
// Ring (Patarasuk & Yuan 2009): every link carries 2 (n - 1) / n S. Parameter server (Li et al. 2014): the server's
// link carries (n - 1) S of gradients in and (n - 1) S of parameters out.
double ring_link_bytes(double gradient_bytes, int ranks);
double server_link_bytes(double gradient_bytes, int ranks);

// `ranks` in groups that make the same calls, each with its own peers; ordered by their first ranks. The same are ids
// (without `numbered` those of every owner: CallId::of_every_owner), collectives, axes, counts, bytes, sizes of the groups, and the
// part taken where there is a root. What a rank then sends is the same but for the elements that a ring cannot share out
// evenly. With several shards REDUCE_PARTIAL is left out: it is of what of norms and biases lies in the rank's shard.
std::vector<std::vector<int>> alike_ranks(const Program& program, const Layout& layout, const std::vector<int>& ranks,
                                          bool numbered);

// The first rank of every coordinate on pp.
std::vector<int> stage_ranks(const Layout& layout);

// Of one rank's parameters: with tp and pp a part of the model's.
int64_t parameters_of(const Layout& layout, int rank);

// Zero 0: the busiest link of the layout as a ring and as a parameter server.
struct ReductionTraffic {
  int64_t ring_link = 0;
  int64_t server_link = 0;
};
std::vector<ReductionTraffic> reduction_traffic(const Layout& layout, const std::vector<int>& ranks);

// ZeRO (Rajbhandari et al. 2020, section 7): a rank sends (S - 1) / S of all parameters each time they are gathered and
// each time their gradients are reduced: with one microbatch 2 P for zero 1 and 2, 3 P for zero 3. With M of them
//            gathers                                      reduces
//   zero 1   1 after STEP                                 1
//   zero 2   1 after STEP                                 M
//   zero 3   2 M, forward and backward; M without         M
//            reshard_after_forward, M + 1 without reshard_after_microbatch, 1 without both
// The prediction for zero 3 is less: what is not read in between is gathered once (the head, for forward and backward),
// and the backward of the embedding reads no parameters. In a pipeline all reduce once (Layout::reduces_once), and zero 3
// gathers up to 2 M times whatever reshard_after_forward says, because other microbatches come in between; without
// reshard_after_microbatch as above.
struct StageTraffic {
  int zero = 1;
  int64_t gathers = 0;  // times all parameters, in the compute precision
  int64_t reduces = 0;  // times all gradients, in reduce_precision
  double formula_bytes = 0;
  int64_t predicted_bytes = 0;  // of the layout with this stage; units are padded
};
// For each of `ranks`: stages 1, 2 and 3 of the layout. It has several shards.
std::vector<std::vector<StageTraffic>> sharding_traffic(const Layout& layout, const std::vector<int>& ranks);

// HSDP: an all-reduce of one shard's gradients over R groups, 2 (R - 1) / R of them.
struct ReplicaTraffic {
  double formula_bytes = 0;
  int64_t predicted_bytes = 0;
};
ReplicaTraffic replica_traffic(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program
