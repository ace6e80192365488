// Behind Communicator: numbers the calls and turns each into an entry of the queue, or hands it to the backend.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/algorithms.h"
#include "lockstep/comm/call_queue.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

// A tensor of a call that the host makes, and what the call does with it.
enum class Use { kRead, kWrite, kBoth };
struct Operand {
  at::Tensor tensor{};  // undefined: this rank has none
  Use use = Use::kRead;
};
using Operands = std::array<Operand, 2>;
using HostTensors = std::array<at::Tensor, 2>;  // of the operands, where algorithms can work
using Body = std::function<void(Link&, program::Algorithm, const HostTensors&)>;

inline std::byte* bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}

struct Communicator::Impl {
  Impl(std::unique_ptr<Transport> transport, const CommunicatorOptions& given);

  // What a collective is asked to do.
  struct Request {
    program::Collective collective;
    const CallOptions& options;
    int64_t numel = 0;  // of the full buffer
    int root = 0;
    PartSizes parts{};  // of all_to_all_v
  };

  bool alone() const { return options.ranks.size() == 1; }
  int size() const { return static_cast<int>(options.ranks.size()); }
  int rank() const { return queue.transport().rank(); }

  static std::string name(const Request& request);
  static ElementType type_of(const Request& request, const at::Tensor& tensor);

  void check(const Request& request, const at::Tensor& tensor) const;
  void check_parts(const Request& request, const at::Tensor& part, const at::Tensor& full) const;
  // `rows`: of each rank, in all_to_all_v.
  void check_rows(const Request& request, const at::Tensor& tensor, std::span<const int64_t> rows) const;

  Work collective(const Request& request, const Operands& operands, Body body);
  Work shift(const Request& request, const at::Tensor& input, const at::Tensor& output);  // either way
  // On the host. Operands on a device come there before the rank enters the call, and go back as its last act.
  Work on_host(const Request& request, Call call, const Operands& operands, Body body);
  // Both sides of a message describe it alike: as a send, to the rank that receives, by its number between the two.
  Call message(const Request& request, const at::Tensor& tensor);

  bool by_backend(const at::Tensor& tensor) const { return native && native->takes(tensor); }
  // The backend moves the tensors; the ledger says what the algorithm asked for would have sent.
  Work launch(const Request& request, const Call& call, const at::Tensor& input, const at::Tensor& output);
  Work launch_collective(const Request& request, const at::Tensor& input, const at::Tensor& output) {
    return launch(request, numbered_call(request, input.defined() ? input : output), input, output);
  }

  CommunicatorOptions options;
  bool has_board;
  CallQueue queue;
  std::shared_ptr<Stager> stager;
  int64_t collectives = 0;
  std::vector<int64_t> sent_to;  // messages, by group rank of the other side
  std::vector<int64_t> received_from;
  std::unique_ptr<NativeCollectives> native;  // null: every tensor goes through the transport

 private:
  // `sample`: any tensor of the call, for the element type. Without what is to be done.
  Call make_call(const Request& request, const at::Tensor& sample) const;
  Call numbered_call(const Request& request, const at::Tensor& sample);
  std::map<int, int64_t> sends(const Request& request, const Call& call, int64_t element_bytes) const;
};

}  // namespace lockstep::comm
