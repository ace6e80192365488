// Backend "nccl": ranks with a GPU each, on one host or many. Tensors on the GPU go through NCCL; tensors on the host
// (losses, flags, a checkpoint's texts: bytes) through TCP connections between the ranks and Lockstep's own algorithms.
//
// NCCL chooses ring, tree or NVLink sums itself and is not told CallOptions::algorithm; the ledger holds what that
// algorithm sends. NCCL's documentation promises no order of additions. The same version on the same GPUs, wiring and
// environment with the same sizes makes the same choices, and so the same bits; another number of ranks, another host or
// another version need not. A maximum of floating numbers may lose a NaN.
//
// Calls are launched on the caller's thread, behind what its current CUDA stream holds, on a stream of the group;
// Work::wait orders the caller's current stream behind the call. Neither waits for the device. All groups of a process
// are used by one thread where tensors on the GPU are concerned: NCCL deadlocks where ranks launch in different orders.
//
// A thread of each world, the watch, looks at the calls in flight every 10 ms, at the store every second. A call that
// waits beyond the deadline for its peers, an error of NCCL, a rank that aborted: the device's work is aborted
// (ncclCommAbort) and everything throws from then on. What the GPU computed since is worthless, though the device, here and
// at the peers, takes the call for done: Communicator::confirm() tells it before such results are kept.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/nccl_api.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {

struct NcclOptions {
  std::chrono::milliseconds deadline{60000};  // of every wait for a peer
  int local_rank = 0;                         // among the ranks of this host: the GPU to use
  std::string address = "127.0.0.1";          // of this host, as the other ranks reach it; TCP listens there alone
  std::string token{};                        // a secret of the job, for those connections
};

// liblockstep_nccl.so from the folder of this library. EnvironmentError LS3040 where it is not built or does not load.
std::unique_ptr<NcclApi> load_nccl();

// Loads NCCL (load_nccl), makes GPU `local_rank` the one of the calling thread and
// says so in the store. EnvironmentError LS3040 as load_nccl, LS3041 where there is no such GPU, LS3042 where NCCL or CUDA
// fails.
//
// Its communicator() waits for all ranks of the group: PeerLostError LS3002 naming one that does not come. Destroy the
// communicators before the world.
std::unique_ptr<World> join_nccl(int rank, int world_size, std::shared_ptr<Store> store, const NcclOptions& options);

// The same with a given implementation of NCCL, for tests.
std::unique_ptr<World> join_nccl(int rank, int world_size, std::shared_ptr<Store> store, const NcclOptions& options,
                                 std::unique_ptr<NcclApi> api);

}  // namespace lockstep::comm
