// The ranks that hold one layer together, as sharded layers see them: who they are, which rows each holds, and the few
// collectives that tensor and sequence parallelism need (Shoeybi et al., Megatron-LM, 2019; Korthikanti et al., Reducing
// Activation Recomputation, 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/nn/linear.h"

namespace lockstep::parallel {

struct TensorOptions {
  // Norms, dropout and sums act on this rank's rows of a microbatch, [B S / tp, D]: part `rank` of the rows b S + s, as
  // mesh::padded_range cuts them. Without it every rank holds all rows, [B, S, D].
  bool sequence_parallel = false;
  // Reductions of dx and gatherings of x run beside the weight gradients.
  bool overlap = true;
};

// Not thread-safe: one per rank. `id`: whose call it is and what for (program/call.h); how it is made follows from its sizes
// (program::tensor_call).
// A group of one communicates nothing and returns its arguments.
class TensorGroup {
 public:
  TensorGroup(comm::Communicator& communicator, TensorOptions options);  // the communicator outlives the group

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  bool sequence_parallel() const { return options_.sequence_parallel; }
  bool overlap() const { return options_.overlap; }
  // This rank's part of `rows`.
  mesh::Range local_rows(int64_t rows) const { return mesh::padded_range(rows, size(), rank()); }
  // Of the microbatch whose forward pass, or its repetition, runs: B S, told by each block. A part of them does not say it.
  int64_t rows() const { return rows_; }
  void set_rows(int64_t rows) { rows_ = rows; }

  // kNow: the result is there when the call returns. kBeside: with options.overlap the caller has other work to do until
  // it asks for the result.
  enum class When { kNow, kBeside };

  // The sum over the ranks, in place.
  nn::Pending all_reduce(const at::Tensor& tensor, const program::CallId& id, When when = When::kNow);

  // forward: all_gather(rows) / backward: reduce_scatter(rows).
  // local [rows here, N] of every rank -> [rows, N]
  nn::Pending gather_rows(const at::Tensor& local, int64_t rows, const program::CallId& id, When when = When::kNow);
  // whole [rows, N] of every rank, summed -> [rows here, N]
  nn::Pending scatter_rows(const at::Tensor& whole, const program::CallId& id, When when = When::kNow);

  // The output of a layer whose sum is spread over the ranks: with sequence parallelism [rows, N] -> [rows here, N], else
  // summed in place and shaped as it is.
  nn::Pending reduce_output(const at::Tensor& partial, const program::CallId& id, When when = When::kNow);

  // Seconds that this rank waited for its peers, by what it waited for ("all_reduce", ...); since the last call.
  std::map<std::string, double> take_exposed() { return std::exchange(exposed_, {}); }

 private:
  comm::CallOptions call(const program::CallId& id, program::Collective collective, const at::Tensor& whole, When when) const;
  nn::Pending pending(comm::Work work, const char* what, at::Tensor result);

  comm::Communicator& communicator_;
  const TensorOptions options_;
  int64_t rows_ = 0;
  std::map<std::string, double> exposed_;
};

}  // namespace lockstep::parallel
