// liblockstep_mpi.so: MpiApi over the MPI library of this machine. It links neither LibTorch nor the rest of Lockstep.
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>
#include <stdexcept>

#include "lockstep/comm/mpi_api.h"

namespace lockstep::comm {
namespace {

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw std::runtime_error(std::string(function) + ": " + std::string(text, static_cast<size_t>(length)));
}

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest::handle));
MpiRequest wrapped(MPI_Request request) {
  MpiRequest result{.null = request == MPI_REQUEST_NULL};
  std::memcpy(&result.handle, &request, sizeof request);
  return result;
}
MPI_Request unwrapped(const MpiRequest& request) {
  MPI_Request result;
  std::memcpy(&result, &request.handle, sizeof result);
  return result;
}

class Library : public MpiApi {
 public:
  bool init() override {
    int before = 0;
    check(MPI_Initialized(&before), "MPI_Initialized");
    if (before) throw std::runtime_error("MPI has been initialised in this process before");
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    // By default MPI ends the job where something fails; we want to say first what we were doing.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return provided == MPI_THREAD_MULTIPLE;
  }
  void finalize() override { check(MPI_Finalize(), "MPI_Finalize"); }
  int rank() const override {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }
  int size() const override {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }
  int largest_tag() const override {
    int* value = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found), "MPI_Comm_get_attr");
    return found ? *value : 32767;  // what the standard promises
  }
  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
    const std::string whole(text, static_cast<size_t>(length));
    return whole.substr(0, whole.find_first_of(",\n"));
  }
  std::vector<MpiProcess> gather(const MpiProcess& own) override {
    std::vector<MpiProcess> all(static_cast<size_t>(size()));
    check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD), "MPI_Allgather");
    return all;
  }
  MpiRequest start_barrier() override {
    MPI_Request request;
    check(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
    return wrapped(request);
  }

  MpiRequest start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    MPI_Request request;
    check(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request),
          "MPI_Isend");
    return wrapped(request);
  }
  MpiRequest start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    MPI_Request request;
    check(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request),
          "MPI_Irecv");
    return wrapped(request);
  }
  bool test(MpiRequest& request) override {
    if (request.null) return true;
    MPI_Request inner = unwrapped(request);
    int done = 0;
    check(MPI_Test(&inner, &done, MPI_STATUS_IGNORE), "MPI_Test");
    request = wrapped(inner);
    return done != 0;
  }
  void cancel(MpiRequest& request) override {
    if (request.null) return;
    MPI_Request inner = unwrapped(request);
    check(MPI_Cancel(&inner), "MPI_Cancel");
  }
  std::optional<Arrived> take(int tag) override {
    int there = 0;
    MPI_Message message;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &message, &status), "MPI_Improbe");
    if (!there) return std::nullopt;
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    Arrived arrived{.from = status.MPI_SOURCE, .bytes = std::string(static_cast<size_t>(count), '\0')};
    check(MPI_Mrecv(arrived.bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    return arrived;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) MpiApi* lockstep_mpi_api() {
  return new Library;
}

}  // namespace lockstep::comm
