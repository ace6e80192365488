// Communication between an ordered set of ranks. One wrapper around every collective checks its arguments, records the
// ledger and the flight ring, and has a deadline; algorithms are written once over a Transport's send and recv, so
// every backend runs them all.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/elements.h"
#include "lockstep/comm/flight_ring.h"
#include "lockstep/comm/native.h"
#include "lockstep/comm/stager.h"
#include "lockstep/comm/transport.h"
#include "lockstep/program/ledger.h"

namespace lockstep::comm {

// A collective in flight. Copyable handle; the tensors stay alive until it is done. wait() rethrows what went wrong
// (PeerLostError naming the missing rank). A default-constructed Work is done.
class Work {
 public:
  Work() = default;
  void wait();
  bool done() const;
  // Seconds that wait() blocked the caller: the exposed part of the communication.
  double exposed_seconds() const;

 private:
  friend class Communicator;
  friend class CallQueue;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct CallOptions {
  program::CallId id{};  // what it is for; the key of the ledger, and in errors its text
  // Unset: ring for all_reduce, all_gather and reduce_scatter, tree for reduce and broadcast; the others know only
  // kDirect. InternalError for one that the collective does not have (program::supports).
  std::optional<program::Algorithm> algorithm{};
  ReduceOp op = ReduceOp::kSum;
  // The caller has nothing else to do: its own thread makes the call, after those in flight, and the Work is done. Saves
  // two hand-overs between threads, which cost more than a small call. All of it counts as exposed. A call that goes on
  // a GPU's queue is made by no thread anyway, and this says nothing there.
  bool blocking = false;
};

struct CommunicatorOptions {
  std::string axis = "world";                 // name of the group in ledger and messages
  std::vector<int> ranks;                     // world ranks in group order
  std::chrono::milliseconds deadline{60000};  // of every wait for a peer
  std::shared_ptr<Stager> stager{};           // null: make_stager()
};

// Calls of one communicator run in the order in which they were made, on its own progress thread; all ranks of the
// group must make the same calls in the same order, with the same id. Ranks that do not are told so: InternalError
// with both calls. Sums are in a fixed order: the same bits on every run and on every rank.
//
// Tensors: contiguous, fp32, fp64, bf16 or int64 (else InternalError naming call and dtype); in place where not said
// otherwise; the caller leaves them alone until wait(). A group of one returns its input and records nothing.
//
// A tensor on a GPU: where the backend has collectives of its own (nccl), the call is put on the GPU's queue before it
// returns, wait() makes the caller's stream wait and not the host, exposed_seconds() counts the host alone, and the
// ledger holds what the algorithm asked for sends, though the backend may choose another. Elsewhere it goes through a
// copy on the host (stager.h): taken by the thread that makes the call, once the device has come to where the caller's
// stream stood, and back on the device before the Work is done. The rank enters the call when the copy is there; a blocking
// call's exposed_seconds() count the device's work before it too.
//
// After a failure every later call fails alike. The destructor lets calls in flight end, or cuts them short where it
// runs because of an exception; it never waits longer than the deadline of each wait.
class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options);
  // `native` takes the tensors that it can; the rest go through `transport`.
  Communicator(std::unique_ptr<Transport> transport, std::unique_ptr<NativeCollectives> native,
               CommunicatorOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // in the group
  int size() const;

  Work all_reduce(const at::Tensor& tensor, const CallOptions& options);
  Work reduce(const at::Tensor& tensor, int root, const CallOptions& options);  // result valid on root only
  Work broadcast(const at::Tensor& tensor, int root, const CallOptions& options);
  // [n / size] of every rank, in rank order, into output [n]; `input` may be this rank's slice of `output`.
  Work all_gather(const at::Tensor& input, const at::Tensor& output, const CallOptions& options);
  // The sum of every rank's input [n]; rank r gets part r, [n / size]. `output` may be this rank's slice of `input`.
  Work reduce_scatter(const at::Tensor& input, const at::Tensor& output, const CallOptions& options);
  // Part p of input goes to rank p; part p of output comes from rank p. Equal parts.
  Work all_to_all(const at::Tensor& input, const at::Tensor& output, const CallOptions& options);
  // Parts of unequal size. input [sum of send_rows, ...]: its first send_rows[0] rows go to rank 0, those behind them to
  // rank 1, and so on; output [sum of receive_rows, ...] likewise, receive_rows[p] of rank p; all rows of one shape. What rank
  // a sends to b must be what b receives from a: where the host makes the call InternalError says what each of them meant.
  // The ledger has an all_to_all, its payload the bytes of this rank's input.
  Work all_to_all_v(const at::Tensor& input, const at::Tensor& output, std::span<const int64_t> send_rows,
                    std::span<const int64_t> receive_rows, const CallOptions& options);
  // Each rank's whole input goes to the next one, the last one's to the first; output, which is not the memory of input, has that of the
  // one before. One step of a ring.
  Work shift(const at::Tensor& input, const at::Tensor& output, const CallOptions& options);
  // The other way round: to the one before, of the next one.
  Work shift_back(const at::Tensor& input, const at::Tensor& output, const CallOptions& options);
  // Equal parts; the full tensor (gather's output, scatter's input) is read on root only and may be undefined
  // elsewhere.
  Work gather(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options);
  Work scatter(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options);
  // Between two ranks; ids may differ.
  Work send(const at::Tensor& tensor, int peer, const CallOptions& options);
  Work recv(const at::Tensor& tensor, int peer, const CallOptions& options);
  Work barrier(const CallOptions& options);

  // Throws what a call of any group of this world has failed with so far; waits for no rank and for no device. A call on a
  // GPU's queue that was aborted looks done there, and its Work has let the caller go on. Hence: once the host has read a
  // number that came out of the results, and before they are kept (weights, a checkpoint), ask here. Under nccl a question to
  // the store, 0.1 ms; elsewhere, where wait() tells all, nothing. PeerLostError, EnvironmentError LS3042, as wait().
  void confirm();

  // What this rank put on the links since the last call; the caller owns the result. Waits for calls in flight.
  program::Ledger take_ledger();
  // From now on every call is kept with its times, until they are taken; that waits for calls in flight.
  void time_calls();
  std::vector<TimedCall> take_times();
  // The last calls, one per line, for a report.
  std::string last_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
