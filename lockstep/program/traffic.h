// What the literature says of the traffic of data parallelism and ZeRO, beside what a layout's programs predict. Bytes
// that go over a link in one step, of the ranks of one model replica and one rank of tp.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// Zero 0: the busiest link of the layout as a ring and as a parameter server.
struct ReductionTraffic {
  int64_t ring_link = 0;
  int64_t server_link = 0;
};
ReductionTraffic reduction_traffic(const Layout& layout);

// ZeRO (Rajbhandari et al. 2020, section 7): a rank sends (S - 1) / S of all parameters each time they are gathered and
// each time their gradients are reduced: with one microbatch 2 P for zero 1 and 2, 3 P for zero 3. With M of them
//            gathers                                      reduces
//   zero 1   1 after STEP                                 1
//   zero 2   1 after STEP                                 M
//   zero 3   2 M, forward and backward; M without         M
//            reshard_after_forward, M + 1 without reshard_after_microbatch, 1 without both
// The prediction for zero 3 is less: what is not read in between is gathered once (the head, for forward and backward),
// and the backward of the embedding reads no parameters.
struct StageTraffic {
  int zero = 1;
  int64_t gathers = 0;  // times all parameters, in the compute precision
  int64_t reduces = 0;  // times all gradients, in reduce_precision
  double formula_bytes = 0;
  int64_t predicted_bytes = 0;  // of the layout with this stage; units are padded
};
// Stages 1, 2 and 3 of the layout. It has several shards.
std::vector<StageTraffic> sharding_traffic(const Layout& layout);

// HSDP: an all-reduce of one shard's gradients over R groups, 2 (R - 1) / R of them.
struct ReplicaTraffic {
  double formula_bytes = 0;
  int64_t predicted_bytes = 0;
};
ReplicaTraffic replica_traffic(const Program& program, const Layout& layout);

}  // namespace lockstep::program
