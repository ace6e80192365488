// How a tensor on a device takes part in a call that the host makes: through a copy in page-locked memory, which is there
// before the call reads it and is back before the call is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace lockstep::comm {

// The copies of one call, by the thread that makes it. Each function returns when its copy is done: the host then waits for
// the device, and never for a peer.
class StagedCall {
 public:
  virtual ~StagedCall() = default;
  virtual at::Tensor fetch(const at::Tensor& tensor) = 0;  // a copy on the host
  virtual at::Tensor room(const at::Tensor& tensor) = 0;   // of its shape on the host, not filled
  virtual void store(const at::Tensor& host, const at::Tensor& tensor) = 0;
};

// Of one communicator. A test replaces it.
class Stager {
 public:
  virtual ~Stager() = default;
  virtual bool stages(const at::Tensor& tensor) const = 0;
  // By the caller, when it makes the call: what its current stream holds by now runs before the copies. `tensor`: any of the
  // call, for its device. Does not wait.
  virtual std::shared_ptr<StagedCall> begin(const at::Tensor& tensor) = 0;
};

// For every tensor that is not on the host; copies on a stream of its own.
std::shared_ptr<Stager> make_stager();

}  // namespace lockstep::comm
