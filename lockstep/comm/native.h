// Collectives that a backend has of its own for tensors on its device. The communicator checks the arguments, numbers the
// call and keeps ledger and flight ring; the backend puts the call on the device's queue and says when it is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>

#include "lockstep/comm/elements.h"
#include "lockstep/comm/transport.h"
#include "lockstep/program/ledger.h"

namespace lockstep::comm {

// Tensors as the functions of Communicator take them. One that is changed in place is input and output alike.
struct NativeCall {
  program::Collective collective = program::Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;       // group rank; the peer of send and recv
  at::Tensor input;   // undefined where this rank gives nothing
  at::Tensor output;  // undefined where it gets nothing
  PartSizes parts;    // of an all_to_all of unequal parts
  Progress progress;
  // Both are called by any thread, never after the NativeCollectives has ended.
  std::function<void()> left;  // once, when the call is done
  std::function<std::exception_ptr(std::exception_ptr)> explain;  // adds what this rank did before
};

// A call on its way. Thread-safe.
class NativeWork {
 public:
  virtual ~NativeWork() = default;
  // What the caller puts on the device from now on runs after the call. Does not wait for the device. Throws what went
  // wrong as far as it is known by now.
  virtual void wait() = 0;
  virtual bool done() const = 0;             // on the device, or failed
  virtual double exposed_seconds() const = 0;  // of the host
};

// The calls of one group, by one thread at a time. Destroyed before the communicator's flight ring.
class NativeCollectives {
 public:
  virtual ~NativeCollectives() = default;
  virtual bool takes(const at::Tensor& tensor) const = 0;
  // Returns when the call is on the device's queue, behind what the caller has put there before. PeerLostError LS3002
  // when its peers have not come that far by the deadline; after a failure every later call throws it.
  virtual std::shared_ptr<NativeWork> start(NativeCall call) = 0;
  virtual void confirm() = 0;  // see Communicator::confirm
};

}  // namespace lockstep::comm
