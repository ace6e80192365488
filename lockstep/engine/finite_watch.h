// Which gradients of a step are not finite. Those on the host are looked at there and then. On a device a kernel leaves a
// flag for each, and nobody waits for it: the flags are read once a step, with the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::engine {

// As nn::cuda::mark_nonfinite.
using MarkNonFinite = std::function<void(const std::vector<nn::cuda::WatchedPiece>& pieces, const at::Tensor& flags)>;

class FiniteWatch {
 public:
  // `mark`, a seam for tests: gradients on the host are looked at by this too, as on a device.
  explicit FiniteWatch(std::shared_ptr<MemoryAccount> memory, MarkNonFinite mark = {})
      : memory_(std::move(memory)), forced_(std::move(mark)) {}

  // Forgets the step before.
  void start_step();
  // Gradients that lie in one tensor, beside zeros. On the host a sum that is not finite counts, so also one that overflows
  // though no value does; on a device the values count.
  struct Gradients {
    at::Tensor all;  // fp32, contiguous
    std::vector<ParameterStore::Piece> pieces;
  };
  void look(const std::vector<Gradients>& gradients);

  // What nobody has read yet, [n] int32 where the gradients lie; undefined: nothing. read() gets the same on the host.
  at::Tensor unread() const;
  void read(std::span<const double> flags);
  // Reads what is unread: on a device that waits.
  void read();
  // The row of the first parameter, in the order of the looks, that was found not finite; -1: none. Needs all to be read.
  int first() const;

 private:
  void look_on_host(const Gradients& gradients);
  void make_room(int64_t flags, at::Device device);

  std::shared_ptr<MemoryAccount> memory_;
  const MarkNonFinite forced_;
  at::Tensor flags_;         // int32; zeros behind those in use
  std::vector<int> params_;  // of each flag in use: the row
  int64_t read_ = 0;         // flags that have been read
  int first_ = -1;
};

}  // namespace lockstep::engine
