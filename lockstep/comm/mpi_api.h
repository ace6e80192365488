// The part of MPI that the backend uses, free of mpi.h. liblockstep_mpi.so (mpi_plugin.cpp) implements it and is the
// only thing that links an MPI library; it is loaded where the backend is chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::comm {

// A message under way; null when it is done.
struct MpiRequest {
  uint64_t handle = 0;  // MPI_Request, whatever the library makes of it
  bool null = true;
};

struct MpiProcess {
  uint64_t host = 0;  // equal for processes that see each other's process ids
  int64_t pid = 0;
};

// Messages on MPI_COMM_WORLD between two ranks arrive in order for each tag. Functions are called by any thread once
// init() has returned. std::runtime_error with MPI's own text where MPI fails.
class MpiApi {
 public:
  virtual ~MpiApi() = default;

  // MPI_Init_thread, which waits for all ranks. False where the library does not offer MPI_THREAD_MULTIPLE. Once per
  // process; what follows needs it.
  virtual bool init() = 0;
  virtual void finalize() = 0;  // waits for all ranks; by the thread that called init()
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int largest_tag() const = 0;
  virtual std::string library() const = 0;  // "Open MPI v4.1.4"
  // What every rank says of itself, by rank. Waits for all ranks.
  virtual std::vector<MpiProcess> gather(const MpiProcess& own) = 0;
  virtual MpiRequest start_barrier() = 0;

  // The bytes stay as they are and where they are until test() says true. At most 2^31 - 1.
  virtual MpiRequest start_send(int peer, int tag, std::span<const std::byte> bytes) = 0;
  virtual MpiRequest start_recv(int peer, int tag, std::span<std::byte> bytes) = 0;
  virtual bool test(MpiRequest& request) = 0;    // done (or null); moves what it can
  virtual void cancel(MpiRequest& request) = 0;  // asks for it; test() tells when it has been done

  struct Arrived {
    int from = 0;
    std::string bytes;
  };
  // A message with this tag that has come, whoever sent it.
  virtual std::optional<Arrived> take(int tag) = 0;
};

// The one function of the library: the caller owns the result.
inline constexpr const char* kMpiFactory = "lockstep_mpi_api";
using MpiFactory = MpiApi*();

}  // namespace lockstep::comm
