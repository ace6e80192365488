// Backend "mpi": ranks that mpirun (or srun) has started, on one host or many, over the MPI library of the cluster. It
// uses messages between two ranks alone (MPI_Isend, MPI_Irecv, MPI_Test); the algorithms above it are those of every
// backend, so the sums have the same bits.
//
// How ranks hear of each other besides: a thread of each process, the keeper, looks every 20 ms for messages that are
// no tensors: an abort with its reason, "this group is closed", and the question what a rank is doing, which a rank
// that has waited in vain asks before it gives up.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/world.h"

namespace lockstep::comm {

struct MpiOptions {
  std::chrono::milliseconds deadline{60000};         // of every wait for a peer
  std::chrono::milliseconds start_deadline{300000};  // of all ranks' coming to MPI_Init
};

// Loads liblockstep_mpi.so from the folder of this library and initialises MPI: once per process. EnvironmentError LS3030
// where it is not built or does not load, or MPI does not offer MPI_THREAD_MULTIPLE; LS3031 where MPI counts other ranks
// than the caller; PeerLostError LS3002 where not all ranks have come in time.
//
// Destroy its communicators before the world. Its destructor waits until every rank has come to its end, for as long as
// they give signs of life, and finalises MPI; after an abort or a lost peer it does neither, since MPI_Finalize would
// hang.
std::unique_ptr<World> join_mpi(int rank, int world_size, const MpiOptions& options);

}  // namespace lockstep::comm
