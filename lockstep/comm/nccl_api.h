// The part of NCCL and CUDA that the backend uses, free of their headers. liblockstep_nccl.so (nccl_plugin.cpp) implements
// it and is the only thing that links NCCL; it is loaded where the backend is chosen. A test implements it on the CPU.
//
// NCCL's own words are kept for what is NCCL's: a group is an ncclComm_t that does not block (config.blocking = 0), with
// one CUDA stream of high priority.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/comm/native.h"

namespace lockstep::comm {

// An NCCL or CUDA call that failed: "ncclAllReduce: remote process exited or there was a network error (...)".
class NcclFailure : public std::runtime_error {
 public:
  NcclFailure(const std::string& what, bool peer_lost) : std::runtime_error(what), peer_lost(peer_lost) {}
  bool peer_lost;  // ncclRemoteError: another rank or the network, nothing of ours
};

// A call that has been launched: two CUDA events and the streams between. Thread-safe but for mark().
class NcclTicket {
 public:
  virtual ~NcclTicket() = default;
  // Once the group is ready() after the launch: the call is on the group's stream, and what follows it there is not.
  virtual void mark() = 0;
  virtual bool reached() const = 0;      // the caller's stream has come to the call
  virtual bool done() const = 0;         // after mark()
  virtual void order_after() const = 0;  // the caller's current stream goes on when the call is done; after mark()
};

// Used by one thread at a time. Every function returns at once and throws NcclFailure.
class NcclGroup {
 public:
  virtual ~NcclGroup() = default;  // ncclCommDestroy after close() and ready(), else ncclCommAbort
  // ncclCommGetAsyncError: whether the last call (begin_group included) has been taken in.
  virtual bool ready() = 0;
  // Behind what the caller's current stream holds now. Only when ready().
  virtual std::unique_ptr<NcclTicket> launch(const NativeCall& call) = 0;
  virtual void close() = 0;  // ncclCommFinalize; done when ready()
  // ncclCommAbort: what runs or waits on the device ends soon, its results are worthless. The last call.
  virtual void abort() = 0;
};

class NcclApi {
 public:
  virtual ~NcclApi() = default;
  virtual std::string version() const = 0;  // "NCCL 2.30.7"
  virtual int devices() const = 0;
  virtual void use_device(int index) = 0;  // of the calling thread
  virtual bool takes(const at::Tensor& tensor) const = 0;
  virtual std::string unique_id() = 0;  // ncclGetUniqueId, as its bytes
  // ncclCommInitRankConfig on the calling thread's device; joined when ready().
  virtual std::unique_ptr<NcclGroup> begin_group(const std::string& id, int rank, int size) = 0;
};

// The one function of the library: the caller owns the result.
inline constexpr const char* kNcclFactory = "lockstep_nccl_api";
using NcclFactory = NcclApi*();

}  // namespace lockstep::comm
