#include "lockstep/comm/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/comm/algorithms.h"
#include "lockstep/comm/call_queue.h"

namespace lockstep::comm {
namespace {

using program::Algorithm;
using program::Collective;

std::string name_of(Collective collective, const CallOptions& options) {
  return cat(program::collective_name(collective), " '", program::call_text(options.id), "'");
}

ElementType element_type(const at::Tensor& tensor, Collective collective, const CallOptions& options) {
  switch (tensor.scalar_type()) {
    case at::ScalarType::Float:
      return ElementType::kFloat32;
    case at::ScalarType::Double:
      return ElementType::kFloat64;
    case at::ScalarType::BFloat16:
      return ElementType::kBFloat16;
    case at::ScalarType::Long:
      return ElementType::kInt64;
    default:
      throw InternalError(cat(name_of(collective, options), ": elements of type ", tensor.scalar_type(),
                              " cannot be communicated; use fp32, fp64, bf16 or int64"));
  }
}

Algorithm default_algorithm(Collective collective) {
  if (program::supports(collective, Algorithm::kRing)) return Algorithm::kRing;
  return program::supports(collective, Algorithm::kTree) ? Algorithm::kTree : Algorithm::kDirect;
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}
Elements elements_of(const at::Tensor& tensor) {
  return {.data = bytes_of(tensor), .numel = tensor.numel(), .size = static_cast<size_t>(tensor.element_size())};
}

// The full tensor of a gather or a scatter, which `full` is on root only.
Elements whole(const at::Tensor& full, const at::Tensor& part, int64_t numel) {
  return {.data = bytes_of(full), .numel = numel, .size = static_cast<size_t>(part.element_size())};
}

// What a call of a group of one leaves to do. On a device behind what the caller's stream holds.
void copy_alone(const at::Tensor& from, const at::Tensor& to) {
  if (to.data_ptr() == from.data_ptr()) return;
  if (to.is_cpu())
    std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  else
    to.view({-1}).copy_(from.view({-1}), /*non_blocking=*/true);
}

// A tensor of a call that the host makes, and what the call does with it.
enum class Use { kRead, kWrite, kBoth };
struct Operand {
  at::Tensor tensor{};  // undefined: this rank has none
  Use use = Use::kRead;
};
using Operands = std::array<Operand, 2>;
using HostTensors = std::array<at::Tensor, 2>;  // of the operands, where algorithms can work
using Body = std::function<void(Link&, Algorithm, const HostTensors&)>;

}  // namespace

// Numbers the calls and turns each into an entry of the queue.
struct Communicator::Impl {
  Impl(std::unique_ptr<Transport> transport, const CommunicatorOptions& given)
      : options(given),
        has_board(transport->board() != nullptr),
        queue(std::move(transport), given),
        stager(given.stager ? given.stager : make_stager()),
        sent_to(given.ranks.size()),
        received_from(given.ranks.size()) {}

  // What a collective is asked to do.
  struct Request {
    Collective collective;
    const CallOptions& options;
    int64_t numel = 0;  // of the full buffer
    int root = 0;
  };

  bool alone() const { return options.ranks.size() == 1; }
  int size() const { return static_cast<int>(options.ranks.size()); }

  static std::string name(const Request& request) { return name_of(request.collective, request.options); }
  static ElementType type_of(const Request& request, const at::Tensor& tensor) {
    return element_type(tensor, request.collective, request.options);
  }

  void check(const Request& request, const at::Tensor& tensor) const {
    LOCKSTEP_CHECK(tensor.defined() && tensor.is_contiguous(), name(request), ": the tensor is not contiguous");
    type_of(request, tensor);
  }
  void check_parts(const Request& request, const at::Tensor& part, const at::Tensor& full) const {
    check(request, part);
    check(request, full);
    LOCKSTEP_CHECK_EQ(part.numel() * size(), full.numel(), name(request), ": part times ranks is not the whole");
    LOCKSTEP_CHECK(part.scalar_type() == full.scalar_type() && part.device() == full.device(), name(request),
                   ": two element types or devices");
  }

  // `sample`: any tensor of the call, for the element type. Without what is to be done.
  Call make_call(const Request& request, const at::Tensor& sample) {
    const Algorithm algorithm = request.options.algorithm.value_or(default_algorithm(request.collective));
    LOCKSTEP_CHECK(program::supports(request.collective, algorithm), name(request), " by ",
                   program::algorithm_name(algorithm));
    LOCKSTEP_CHECK(request.root >= 0 && request.root < size(), name(request), ": root or peer ", request.root, " of ",
                   size());
    const ElementType type = sample.defined() ? type_of(request, sample) : ElementType::kInt64;
    Call call;
    call.key = {.id = request.options.id, .collective = request.collective, .axis = options.axis, .algorithm = algorithm};
    call.header = {.numel = request.numel,
                   .root = request.root,
                   .collective = static_cast<int8_t>(request.collective),
                   .algorithm = static_cast<int8_t>(algorithm),
                   .op = static_cast<int8_t>(request.options.op),
                   .dtype = static_cast<int8_t>(type)};
    call.payload = request.numel * static_cast<int64_t>(element_size(type));
    return call;
  }

  Call numbered_call(const Request& request, const at::Tensor& sample) {
    Call call = make_call(request, sample);
    call.header.id = request.options.id;
    call.header.sequence = ++collectives;
    call.progress = {.sequence = collectives,
                     .call = {.id = request.options.id, .number = collectives, .collective = request.collective},
                     .on_board = has_board && on_board(request.collective, call.key.algorithm)};
    return call;
  }

  // On the host. Operands on a device come there before the rank enters the call, and go back as its last act.
  Work on_host(const Request& request, Call call, const Operands& operands, Body body) {
    const Algorithm algorithm = call.key.algorithm;
    const at::Tensor& any = operands[0].tensor.defined() ? operands[0].tensor : operands[1].tensor;
    if (!any.defined() || !stager->stages(any)) {
      call.body = [host = HostTensors{operands[0].tensor, operands[1].tensor}, algorithm,
                   body = std::move(body)](Link& link) { body(link, algorithm, host); };
    } else {
      const auto host = std::make_shared<HostTensors>();
      const std::shared_ptr<StagedCall> staged = stager->begin(any);
      call.prepare = [host, staged, operands] {
        for (size_t i = 0; i < operands.size(); ++i) {
          if (!operands[i].tensor.defined()) continue;
          const bool filled = operands[i].use != Use::kWrite;
          (*host)[i] = filled ? staged->fetch(operands[i].tensor) : staged->room(operands[i].tensor);
        }
      };
      call.body = [host, staged, operands, algorithm, body = std::move(body)](Link& link) {
        body(link, algorithm, *host);
        for (size_t i = 0; i < operands.size(); ++i)
          if (operands[i].tensor.defined() && operands[i].use != Use::kRead)
            staged->store((*host)[i], operands[i].tensor);
      };
    }
    return Work(request.options.blocking ? queue.run_here(std::move(call)) : queue.push(std::move(call)));
  }
  Work collective(const Request& request, const Operands& operands, Body body) {
    const at::Tensor& any = operands[0].tensor.defined() ? operands[0].tensor : operands[1].tensor;
    return on_host(request, numbered_call(request, any), operands, std::move(body));
  }

  // Both sides of a message describe it alike: as a send, to the rank that receives, by its number between the two.
  Call message(const Request& request, const at::Tensor& tensor) {
    check(request, tensor);
    LOCKSTEP_CHECK(request.root != queue.transport().rank(), name(request), " to itself");
    Call call = make_call(request, tensor);
    const bool sends = request.collective == Collective::kSend;
    call.header.collective = static_cast<int8_t>(Collective::kSend);
    call.header.root = sends ? request.root : queue.transport().rank();
    call.header.sequence = ++(sends ? sent_to : received_from)[static_cast<size_t>(request.root)];
    call.progress = {.sequence = collectives,
                     .call = {.id = request.options.id,
                              .peer = options.ranks[static_cast<size_t>(request.root)],
                              .number = call.header.sequence,
                              .collective = request.collective}};
    return call;
  }

  bool by_backend(const at::Tensor& tensor) const { return native && native->takes(tensor); }

  // The backend moves the tensors; the ledger says what the algorithm asked for would have sent.
  Work launch(const Request& request, const Call& call, const at::Tensor& input, const at::Tensor& output) {
    const int64_t flight = queue.flights().enter(call.progress.call, call.payload);
    auto state = std::make_shared<Work::State>();
    state->native = native->start({.collective = request.collective,
                                   .op = request.options.op,
                                   .root = request.root,
                                   .input = input,
                                   .output = output,
                                   .progress = call.progress,
                                   .left = [this, flight] { queue.flights().leave(flight); },
                                   .explain = [this](std::exception_ptr problem) { return queue.explained(problem); }});
    const program::CollectiveCall sends{.collective = request.collective,
                                        .algorithm = call.key.algorithm,
                                        .group = options.ranks,
                                        .numel = request.numel,
                                        .element_size = call.payload / std::max<int64_t>(request.numel, 1),
                                        .root = request.root};
    queue.record(call.key, call.payload, program::predicted_sends(sends, queue.transport().rank()));
    return Work(state);
  }
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
};

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : Communicator(std::move(transport), nullptr, std::move(options)) {}
Communicator::Communicator(std::unique_ptr<Transport> transport, std::unique_ptr<NativeCollectives> native,
                           CommunicatorOptions options) {
  LOCKSTEP_CHECK_EQ(static_cast<size_t>(transport->size()), options.ranks.size());
  impl_ = std::make_unique<Impl>(std::move(transport), options);
  impl_->native = std::move(native);
}
Communicator::~Communicator() = default;

int Communicator::rank() const {
  return impl_->queue.transport().rank();
}
int Communicator::size() const {
  return impl_->size();
}
void Communicator::confirm() {
  if (impl_->native) impl_->native->confirm();
}
program::Ledger Communicator::take_ledger() {
  return impl_->queue.take_ledger();
}
void Communicator::time_calls() {
  impl_->queue.flights().time_calls();
}
std::vector<TimedCall> Communicator::take_times() {
  impl_->queue.wait_for_calls();
  return impl_->queue.flights().take_times();
}
std::string Communicator::last_calls() const {
  return impl_->queue.last_calls();
}

Work Communicator::all_reduce(const at::Tensor& tensor, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kAllReduce, .options = options, .numel = tensor.numel()};
  impl_->check(request, tensor);
  if (impl_->alone()) return {};
  if (impl_->by_backend(tensor)) return impl_->launch_collective(request, tensor, tensor);
  const Reduction reduction = reduction_of(Impl::type_of(request, tensor), options.op);
  return impl_->collective(request, {{{tensor, Use::kBoth}}},
                           [reduction](Link& link, Algorithm algorithm, const HostTensors& host) {
                             comm::all_reduce(link, algorithm, elements_of(host[0]), reduction);
                           });
}

Work Communicator::reduce(const at::Tensor& tensor, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kReduce, .options = options, .numel = tensor.numel(), .root = root};
  impl_->check(request, tensor);
  if (impl_->alone()) return {};
  if (impl_->by_backend(tensor)) return impl_->launch_collective(request, tensor, tensor);
  const Combine combine = combine_function(Impl::type_of(request, tensor), options.op);
  return impl_->collective(request, {{{tensor, rank() == root ? Use::kBoth : Use::kRead}}},
                           [root, combine](Link& link, Algorithm algorithm, const HostTensors& host) {
                             comm::reduce(link, algorithm, elements_of(host[0]), root, combine);
                           });
}

Work Communicator::broadcast(const at::Tensor& tensor, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kBroadcast, .options = options, .numel = tensor.numel(), .root = root};
  impl_->check(request, tensor);
  if (impl_->alone()) return {};
  if (impl_->by_backend(tensor)) return impl_->launch_collective(request, tensor, tensor);
  return impl_->collective(request, {{{tensor, rank() == root ? Use::kRead : Use::kWrite}}},
                           [root](Link& link, Algorithm algorithm, const HostTensors& host) {
                             comm::broadcast(link, algorithm, elements_of(host[0]), root);
                           });
}

Work Communicator::all_gather(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kAllGather, .options = options, .numel = output.numel()};
  impl_->check_parts(request, input, output);
  if (impl_->alone()) return copy_alone(input, output), Work();
  if (impl_->by_backend(output)) return impl_->launch_collective(request, input, output);
  return impl_->collective(request, {{{input, Use::kRead}, {output, Use::kWrite}}},
                           [rank = rank()](Link& link, Algorithm algorithm, const HostTensors& host) {
                             const auto& [part, full] = host;
                             std::byte* own = bytes_of(full) + static_cast<size_t>(rank) * part.nbytes();
                             if (own != bytes_of(part)) std::memcpy(own, bytes_of(part), part.nbytes());
                             comm::all_gather(link, algorithm, elements_of(full));
                           });
}

Work Communicator::reduce_scatter(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kReduceScatter, .options = options, .numel = input.numel()};
  impl_->check_parts(request, output, input);
  if (impl_->alone()) return copy_alone(input, output), Work();
  if (impl_->by_backend(input)) return impl_->launch_collective(request, input, output);
  const Reduction reduction = reduction_of(Impl::type_of(request, input), options.op);
  return impl_->collective(request, {{{input, Use::kRead}, {output, Use::kWrite}}},
                           [reduction](Link& link, Algorithm algorithm, const HostTensors& host) {
                             const auto& [full, part] = host;
                             comm::reduce_scatter(link, algorithm, elements_of(full), bytes_of(part), reduction);
                           });
}

Work Communicator::all_to_all(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kAllToAll, .options = options, .numel = input.numel()};
  impl_->check(request, input);
  impl_->check(request, output);
  LOCKSTEP_CHECK(input.numel() == output.numel() && input.scalar_type() == output.scalar_type() &&
                     input.device() == output.device() && input.numel() % size() == 0,
                 Impl::name(request), ": ", input.numel(), " and ", output.numel(), " elements for ", size(), " ranks");
  if (impl_->alone()) return copy_alone(input, output), Work();
  if (impl_->by_backend(input)) {
    LOCKSTEP_CHECK(input.numel() == 0 || input.data_ptr() != output.data_ptr(), Impl::name(request), " in place");
    return impl_->launch_collective(request, input, output);
  }
  return impl_->collective(request, {{{input, Use::kRead}, {output, Use::kWrite}}},
                           [](Link& link, Algorithm, const HostTensors& host) {
                             comm::all_to_all(link, elements_of(host[0]), bytes_of(host[1]));
                           });
}

Work Communicator::gather(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kGather, .options = options, .numel = input.numel() * size(), .root = root};
  const bool receives = rank() == root;
  receives ? impl_->check_parts(request, input, output) : impl_->check(request, input);
  if (impl_->alone()) return copy_alone(input, output), Work();
  const at::Tensor full = receives ? output : at::Tensor();
  if (impl_->by_backend(input)) return impl_->launch_collective(request, input, full);
  return impl_->collective(request, {{{input, Use::kRead}, {full, Use::kWrite}}},
                           [numel = request.numel, root](Link& link, Algorithm, const HostTensors& host) {
                             comm::gather(link, bytes_of(host[0]), whole(host[1], host[0], numel), root);
                           });
}

Work Communicator::scatter(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kScatter, .options = options, .numel = output.numel() * size(), .root = root};
  const bool gives = rank() == root;
  gives ? impl_->check_parts(request, output, input) : impl_->check(request, output);
  if (impl_->alone()) return copy_alone(input, output), Work();
  const at::Tensor full = gives ? input : at::Tensor();
  if (impl_->by_backend(output)) return impl_->launch_collective(request, full, output);
  return impl_->collective(request, {{{output, Use::kWrite}, {full, Use::kRead}}},
                           [numel = request.numel, root](Link& link, Algorithm, const HostTensors& host) {
                             comm::scatter(link, whole(host[1], host[0], numel), bytes_of(host[0]), root);
                           });
}

Work Communicator::send(const at::Tensor& tensor, int peer, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kSend, .options = options, .numel = tensor.numel(), .root = peer};
  Call call = impl_->message(request, tensor);
  if (impl_->by_backend(tensor)) return impl_->launch(request, call, tensor, {});
  return impl_->on_host(request, std::move(call), {{{tensor, Use::kRead}}},
                        [peer](Link& link, Algorithm, const HostTensors& host) {
                          link.send(peer, {bytes_of(host[0]), host[0].nbytes()});
                        });
}

Work Communicator::recv(const at::Tensor& tensor, int peer, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kRecv, .options = options, .numel = tensor.numel(), .root = peer};
  Call call = impl_->message(request, tensor);
  if (impl_->by_backend(tensor)) return impl_->launch(request, call, {}, tensor);
  return impl_->on_host(request, std::move(call), {{{tensor, Use::kWrite}}},
                        [peer](Link& link, Algorithm, const HostTensors& host) {
                          link.recv(peer, {bytes_of(host[0]), host[0].nbytes()});
                        });
}

Work Communicator::barrier(const CallOptions& options) {
  if (impl_->alone()) return {};
  const Impl::Request request{.collective = Collective::kBarrier, .options = options, .numel = 1};
  return impl_->collective(request, {}, [](Link& link, Algorithm, const HostTensors&) { comm::barrier(link); });
}

}  // namespace lockstep::comm
