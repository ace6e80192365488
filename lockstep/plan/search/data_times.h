// How long gradients, parameters and activations travel between the ranks of one mesh: once for all candidates on it.
#pragma once

#include <vector>

#include "lockstep/plan/search/layer_pieces.h"

namespace lockstep::plan {

// Seconds, of one layer of each place, as if nothing else ran.
struct DataTimes {
  struct OfPlace {
    double all_reduce = 0;      // gradients of zero 0, in buckets
    double reduce_scatter = 0;  // of zero 1, in buckets
    double copies = 0;          // of a rank's shard, where several groups hold all shards: once a step
    double reduce_unit = 0;     // of zero 2 and 3: unit by unit
    double gather_unit = 0;     // parameters
  };
  std::vector<OfPlace> places{};
  double tied = 0;              // the sum of an embedding that the first and the last stage have
  // Of a message of so many bytes from one stage to the next: latency + bytes x per_byte.
  double send_latency = 0, send_per_byte = 0;
};

// `candidate`: of its mesh, ep and etp. `pieces` as made for it.
DataTimes data_times(const Job& job, const EstimateOptions& options, LayerPieces& pieces, const Candidate& candidate);

}  // namespace lockstep::plan
