// What each rank of a pipeline holds of a published run: its blocks, and how many microbatches of each are in flight.
#pragma once

#include <vector>

#include "lockstep/plan/evidence/memory_sizes.h"

namespace lockstep::plan {

struct MemoryStage {
  double dense = 0, experts = 0;        // parameters of its blocks, of one rank of tp, etp and ep
  double first = 0, last = 0;           // of the embedding, of the head, where it has them
  double largest = 0, working = 0;      // parameters of its largest block; working_bytes() of its widest
  double kept = 0;                      // bytes for each token of a microbatch: of all blocks, as often as they are in flight
  double in_flight = 0;                 // microbatches of a chunk, summed over its chunks
  double late_share = 1;                // of its blocks, those of the chunk that runs backward first
  bool is_first = false, is_last = false;
  int chunks = 1;
  double parameters() const { return dense + experts + first + last; }
};
// Without a pipeline one that has all. Blocks lie as blocks_of_stages() says.
std::vector<MemoryStage> memory_stages(const MemorySizes& of, const RunFrame& frame, const RunChoice& choice);

// Microbatches of each chunk of a rank whose activations are there when its first backward begins, which is when there are most:
//   1F1B         min(m, p - i) on stage i (Narayanan et al. 2021)
//   interleaved  the first min(m v, 2 (p - i - 1) + (v - 1) p + 1) forwards, which take the chunks in turns of p microbatches
//   zb-h1, zb-h2 min(m, p), min(m, 2 p - 1) (Qi et al. 2023); zb-v p, dualpipe-v p + 1, half of them of either chunk
//   gpipe        m
std::vector<double> microbatches_in_flight(config::ScheduleKind schedule, int stage, int stages, int chunks, double microbatches);

}  // namespace lockstep::plan
