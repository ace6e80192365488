// liblockstep_nccl.so: NcclApi over NCCL, CUDA and LibTorch's CUDA streams.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/comm/nccl_api.h"

namespace lockstep::comm {
namespace {

using program::Collective;

void check(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  throw NcclFailure(std::string(function) + ": " + cudaGetErrorString(code), false);
}

// ncclInProgress is how a communicator that does not block says that all is well so far.
void check(ncclResult_t code, const char* function, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  std::string text = std::string(function) + ": " + ncclGetErrorString(code);
  const char* last = ncclGetLastError(comm);
  if (last && *last) text += std::string(" (") + last + ")";
  throw NcclFailure(text, code == ncclRemoteError);
}

ncclDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kLong:
      return ncclInt64;
    default:
      throw NcclFailure(std::string("no element type of NCCL for ") + c10::toString(tensor.scalar_type()), false);
  }
}

const char* function_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "ncclAllReduce";
    case Collective::kAllGather:
      return "ncclAllGather";
    case Collective::kReduceScatter:
      return "ncclReduceScatter";
    case Collective::kBroadcast:
      return "ncclBroadcast";
    case Collective::kReduce:
      return "ncclReduce";
    case Collective::kSend:
      return "ncclSend";
    case Collective::kRecv:
      return "ncclRecv";
    default:
      return "a group of ncclSend and ncclRecv";
  }
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  bool passed() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaErrorNotReady) check(code, "cudaEventQuery");
    return code == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Ticket : public NcclTicket {
 public:
  explicit Ticket(cudaStream_t stream) : stream_(stream) {
    before_.record(c10::cuda::getCurrentCUDAStream());
    before_.hold(stream);
  }
  void mark() override { after_.record(stream_); }
  bool reached() const override { return before_.passed(); }
  bool done() const override { return after_.passed(); }
  void order_after() const override { after_.hold(c10::cuda::getCurrentCUDAStream()); }

 private:
  cudaStream_t stream_;
  Event before_;
  Event after_;
};

// Ends the group of NCCL calls also where one of them throws; a second ncclGroupEnd would be an error.
class CallsAtOnce {
 public:
  explicit CallsAtOnce(ncclComm_t comm) : comm_(comm) { check(ncclGroupStart(), "ncclGroupStart", comm); }
  ~CallsAtOnce() {
    if (open_) ncclGroupEnd();
  }
  void end() {
    open_ = false;
    check(ncclGroupEnd(), "ncclGroupEnd", comm_);
  }

 private:
  ncclComm_t comm_;
  bool open_ = true;
};

class Group : public NcclGroup {
 public:
  Group(const std::string& id, int rank, int size) : rank_(rank), size_(size), stream_(high_priority_stream()) {
    ncclUniqueId unique;
    if (id.size() != sizeof unique) throw NcclFailure("an ncclUniqueId of another size: two versions of NCCL?", false);
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig", nullptr);
  }
  ~Group() override {
    if (!comm_) return;
    closed_ ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
  }

  bool ready() override {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    check(state, what_, comm_);
    return state == ncclSuccess;
  }

  std::unique_ptr<NcclTicket> launch(const NativeCall& call) override {
    auto ticket = std::make_unique<Ticket>(stream_);
    put(call);
    return ticket;
  }

  void close() override {
    what_ = "ncclCommFinalize";
    check(ncclCommFinalize(comm_), what_, comm_);
    closed_ = true;
  }

  void abort() override {
    const ncclComm_t comm = std::exchange(comm_, nullptr);
    check(ncclCommAbort(comm), "ncclCommAbort", nullptr);
  }

 private:
  static cudaStream_t high_priority_stream() { return c10::cuda::getStreamFromPool(/*isHighPriority=*/true).stream(); }

  void put(const NativeCall& call) {
    const void* in = call.input.defined() ? call.input.const_data_ptr() : nullptr;
    void* out = call.output.defined() ? call.output.mutable_data_ptr() : nullptr;
    const at::Tensor& any = call.input.defined() ? call.input : call.output;
    const ncclDataType_t type = type_of(any);
    const auto count = static_cast<size_t>(any.numel());
    const auto outputs = static_cast<size_t>(call.output.defined() ? call.output.numel() : 0);
    const ncclRedOp_t op = call.op == ReduceOp::kMax ? ncclMax : ncclSum;
    what_ = function_of(call.collective);
    switch (call.collective) {
      case Collective::kAllReduce:
        return check(ncclAllReduce(in, out, count, type, op, comm_, stream_), what_, comm_);
      case Collective::kReduce:
        return check(ncclReduce(in, out, count, type, op, call.root, comm_, stream_), what_, comm_);
      case Collective::kBroadcast:
        return check(ncclBroadcast(in, out, count, type, call.root, comm_, stream_), what_, comm_);
      case Collective::kAllGather:
        return check(ncclAllGather(in, out, count, type, comm_, stream_), what_, comm_);
      case Collective::kReduceScatter:
        return check(ncclReduceScatter(in, out, outputs, type, op, comm_, stream_), what_, comm_);
      case Collective::kSend:
        return check(ncclSend(in, count, type, call.root, comm_, stream_), what_, comm_);
      case Collective::kRecv:
        return check(ncclRecv(out, count, type, call.root, comm_, stream_), what_, comm_);
      case Collective::kAllToAll:
        return exchange({call.input, everybody(), call.parts.sent}, {call.output, everybody(), call.parts.received});
      case Collective::kGather:
        return exchange({call.input, {call.root}}, {call.output, rank_ == call.root ? everybody() : std::vector<int>{}});
      case Collective::kScatter:
        return exchange({call.input, rank_ == call.root ? everybody() : std::vector<int>{}}, {call.output, {call.root}});
      case Collective::kShift:
        return exchange({call.input, {(rank_ + 1) % size_}}, {call.output, {(rank_ + size_ - 1) % size_}});
      case Collective::kShiftBack:
        return exchange({call.input, {(rank_ + size_ - 1) % size_}}, {call.output, {(rank_ + 1) % size_}});
      case Collective::kBarrier:
        throw NcclFailure("a barrier has no tensor", false);
    }
  }

  // A part of `tensor` for every rank of `ranks`, which are one rank, with the whole tensor, or all of them.
  struct Parts {
    const at::Tensor& tensor;
    std::vector<int> ranks;
    std::vector<int64_t> sizes{};  // empty: equal parts
    size_t count(int rank) const {
      return sizes.empty() ? static_cast<size_t>(tensor.numel()) / ranks.size() : static_cast<size_t>(sizes[static_cast<size_t>(rank)]);
    }
    std::byte* of(int rank) const {
      const size_t index = ranks.size() == 1 ? 0 : static_cast<size_t>(rank);
      const size_t before = sizes.empty() ? index * count(rank)
                                          : static_cast<size_t>(std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0}));
      return static_cast<std::byte*>(tensor.data_ptr()) + before * tensor.element_size();
    }
  };
  std::vector<int> everybody() const {
    std::vector<int> ranks(static_cast<size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  // All sends and receives are one operation of NCCL, so that their order does not matter. What a rank sends itself NCCL
  // copies, unless it is there already. An empty part is no operation, on either side.
  void exchange(const Parts& out, const Parts& in) {
    const auto there = [&](int peer) { return peer == rank_ && holds(out) && holds(in) && out.of(peer) == in.of(peer); };
    CallsAtOnce calls(comm_);
    for (const int peer : out.ranks) {
      if (there(peer) || out.count(peer) == 0) continue;
      check(ncclSend(out.of(peer), out.count(peer), type_of(out.tensor), peer, comm_, stream_), what_, comm_);
    }
    for (const int peer : in.ranks) {
      if (there(peer) || in.count(peer) == 0) continue;
      check(ncclRecv(in.of(peer), in.count(peer), type_of(in.tensor), peer, comm_, stream_), what_, comm_);
    }
    calls.end();
  }
  static bool holds(const Parts& parts) { return !parts.ranks.empty(); }

  int rank_;
  int size_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
  const char* what_ = "ncclCommInitRankConfig";  // the last call, for the text of its failure
  bool closed_ = false;
};

class Library : public NcclApi {
 public:
  std::string version() const override {
    int code = 0;
    check(ncclGetVersion(&code), "ncclGetVersion", nullptr);
    return "NCCL " + std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
           std::to_string(code % 100);
  }
  int devices() const override { return c10::cuda::device_count(); }
  void use_device(int index) override { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); }
  bool takes(const at::Tensor& tensor) const override { return tensor.is_cuda(); }
  std::string unique_id() override {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    return {id.internal, sizeof id.internal};
  }
  std::unique_ptr<NcclGroup> begin_group(const std::string& id, int rank, int size) override {
    return std::make_unique<Group>(id, rank, size);
  }
};

}  // namespace
}  // namespace lockstep::comm

extern "C" __attribute__((visibility("default"))) lockstep::comm::NcclApi* lockstep_nccl_api() {
  return new lockstep::comm::Library();
}
