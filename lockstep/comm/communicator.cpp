#include "lockstep/comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/comm/algorithms.h"
#include "lockstep/comm/call_queue.h"

namespace lockstep::comm {
namespace {

using program::Algorithm;
using program::Collective;

ElementType element_type(const at::Tensor& tensor, const std::string& name) {
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
      throw InternalError(cat(name, ": elements of type ", tensor.scalar_type(),
                              " cannot be communicated; use fp32, fp64, bf16 or int64"));
  }
}

Algorithm default_algorithm(Collective collective) {
  if (program::supports(collective, Algorithm::kRing)) return Algorithm::kRing;
  return program::supports(collective, Algorithm::kTree) ? Algorithm::kTree : Algorithm::kDirect;
}

// A tensor on the host for the time of a call: itself, or a copy of one that lives on a GPU.
class HostTensor {
 public:
  HostTensor() = default;
  explicit HostTensor(const at::Tensor& tensor) : tensor_(tensor), host_(tensor.is_cpu() ? tensor : tensor.cpu()) {}
  std::byte* data() const { return static_cast<std::byte*>(host_.data_ptr()); }
  Elements elements() const {
    return {.data = data(), .numel = host_.numel(), .size = static_cast<size_t>(host_.element_size())};
  }
  size_t bytes() const { return host_.nbytes(); }
  // After the call: what arrived goes to where the tensor lives.
  void write_back() const {
    if (!host_.is_same(tensor_)) tensor_.copy_(host_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor host_;
};

}  // namespace

// Numbers the calls and turns each into an entry of the queue.
struct Communicator::Impl {
  Impl(std::unique_ptr<Transport> transport, const CommunicatorOptions& given)
      : options(given),
        has_board(transport->board() != nullptr),
        queue(std::move(transport), given),
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

  static std::string name(const Request& request) {
    return cat(program::collective_name(request.collective), " '", request.options.site, "'");
  }

  void check(const Request& request, const at::Tensor& tensor) const {
    LOCKSTEP_CHECK(tensor.defined() && tensor.is_contiguous(), name(request), ": the tensor is not contiguous");
    element_type(tensor, name(request));
  }
  void check_parts(const Request& request, const at::Tensor& part, const at::Tensor& full) const {
    check(request, part);
    check(request, full);
    LOCKSTEP_CHECK_EQ(part.numel() * size(), full.numel(), name(request), ": part times ranks is not the whole");
    LOCKSTEP_CHECK(part.scalar_type() == full.scalar_type() && part.device() == full.device(), name(request),
                   ": two element types or devices");
  }

  // `sample`: any tensor of the call, for the element type. `body` is empty where the backend makes the call itself.
  Call make_call(const Request& request, const at::Tensor& sample, std::function<void(Link&)> body) {
    const Algorithm algorithm = request.options.algorithm.value_or(default_algorithm(request.collective));
    LOCKSTEP_CHECK(program::supports(request.collective, algorithm), name(request), " by ",
                   program::algorithm_name(algorithm));
    LOCKSTEP_CHECK(request.root >= 0 && request.root < size(), name(request), ": root or peer ", request.root, " of ",
                   size());
    const ElementType type = sample.defined() ? element_type(sample, name(request)) : ElementType::kInt64;
    Call call;
    call.key = {
        .site = request.options.site, .collective = request.collective, .axis = options.axis, .algorithm = algorithm};
    call.header = {.numel = request.numel,
                   .root = request.root,
                   .collective = static_cast<int8_t>(request.collective),
                   .algorithm = static_cast<int8_t>(algorithm),
                   .op = static_cast<int8_t>(request.options.op),
                   .dtype = static_cast<int8_t>(type)};
    call.payload = request.numel * static_cast<int64_t>(element_size(type));
    call.body = std::move(body);
    return call;
  }

  Call numbered_call(const Request& request, const at::Tensor& sample, std::function<void(Link&)> body) {
    Call call = make_call(request, sample, std::move(body));
    const std::string& site = request.options.site;
    std::memcpy(call.header.site.data(), site.data(), std::min(site.size(), call.header.site.size()));
    call.header.sequence = ++collectives;
    std::string text(program::collective_name(request.collective));  // cat() is too slow for a call of 1 us
    text.append(" #").append(std::to_string(collectives)).append(" '").append(site).append("'");
    call.progress = {.sequence = collectives,
                     .call = std::move(text),
                     .on_board = has_board && on_board(request.collective, call.key.algorithm)};
    return call;
  }

  Work collective(const Request& request, const at::Tensor& sample, std::function<void(Link&, Algorithm)> body) {
    const Algorithm algorithm = request.options.algorithm.value_or(default_algorithm(request.collective));
    return run(request, numbered_call(request, sample, [body = std::move(body), algorithm](Link& link) {
                 body(link, algorithm);
               }));
  }

  Work run(const Request& request, Call call) {
    return Work(request.options.blocking ? queue.run_here(std::move(call)) : queue.push(std::move(call)));
  }

  // Both sides of a message describe it alike: as a send, to the rank that receives, by its number between the two.
  Call message(const Request& request, const at::Tensor& tensor, std::function<void(Link&)> body) {
    check(request, tensor);
    LOCKSTEP_CHECK(request.root != queue.transport().rank(), name(request), " to itself");
    Call call = make_call(request, tensor, std::move(body));
    const bool sends = request.collective == Collective::kSend;
    call.header.collective = static_cast<int8_t>(Collective::kSend);
    call.header.root = sends ? request.root : queue.transport().rank();
    call.header.sequence = ++(sends ? sent_to : received_from)[static_cast<size_t>(request.root)];
    call.progress = {.sequence = collectives,
                     .call = cat(program::collective_name(request.collective), " #", call.header.sequence, " '",
                                 request.options.site, sends ? "' to rank " : "' from rank ",
                                 options.ranks[static_cast<size_t>(request.root)])};
    return call;
  }

  bool by_backend(const at::Tensor& tensor) const { return native && native->takes(tensor); }

  // The backend moves the tensors; the ledger says what the algorithm asked for would have sent.
  Work launch(const Request& request, const Call& call, const at::Tensor& input, const at::Tensor& output) {
    const int64_t flight = queue.flights().enter(call.progress.call, call.key.site, call.payload);
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
    return launch(request, numbered_call(request, input.defined() ? input : output, {}), input, output);
  }

  CommunicatorOptions options;
  bool has_board;
  CallQueue queue;
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
  const Reduction reduction = reduction_of(element_type(tensor, options.site), options.op);
  return impl_->collective(request, tensor, [buffer = HostTensor(tensor), reduction](Link& link, Algorithm algorithm) {
    comm::all_reduce(link, algorithm, buffer.elements(), reduction);
    buffer.write_back();
  });
}

Work Communicator::reduce(const at::Tensor& tensor, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kReduce, .options = options, .numel = tensor.numel(), .root = root};
  impl_->check(request, tensor);
  if (impl_->alone()) return {};
  if (impl_->by_backend(tensor)) return impl_->launch_collective(request, tensor, tensor);
  const Combine combine = combine_function(element_type(tensor, options.site), options.op);
  return impl_->collective(request, tensor,
                           [buffer = HostTensor(tensor), root, combine](Link& link, Algorithm algorithm) {
                             comm::reduce(link, algorithm, buffer.elements(), root, combine);
                             buffer.write_back();
                           });
}

Work Communicator::broadcast(const at::Tensor& tensor, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kBroadcast, .options = options, .numel = tensor.numel(), .root = root};
  impl_->check(request, tensor);
  if (impl_->alone()) return {};
  if (impl_->by_backend(tensor)) return impl_->launch_collective(request, tensor, tensor);
  return impl_->collective(request, tensor, [buffer = HostTensor(tensor), root](Link& link, Algorithm algorithm) {
    comm::broadcast(link, algorithm, buffer.elements(), root);
    buffer.write_back();
  });
}

Work Communicator::all_gather(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kAllGather, .options = options, .numel = output.numel()};
  impl_->check_parts(request, input, output);
  if (!impl_->alone() && impl_->by_backend(output)) return impl_->launch_collective(request, input, output);
  const auto place_own = [rank = rank()](const HostTensor& part, const HostTensor& full) {
    std::byte* own = full.data() + static_cast<size_t>(rank) * part.bytes();
    if (own != part.data()) std::memcpy(own, part.data(), part.bytes());
  };
  const HostTensor part(input), full(output);
  if (impl_->alone()) {
    place_own(part, full);
    full.write_back();
    return {};
  }
  return impl_->collective(request, output, [part, full, place_own](Link& link, Algorithm algorithm) {
    place_own(part, full);
    comm::all_gather(link, algorithm, full.elements());
    full.write_back();
  });
}

Work Communicator::reduce_scatter(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kReduceScatter, .options = options, .numel = input.numel()};
  impl_->check_parts(request, output, input);
  if (!impl_->alone() && impl_->by_backend(input)) return impl_->launch_collective(request, input, output);
  const HostTensor full(input), part(output);
  if (impl_->alone()) {
    if (part.data() != full.data()) std::memcpy(part.data(), full.data(), full.bytes());
    part.write_back();
    return {};
  }
  const Reduction reduction = reduction_of(element_type(input, options.site), options.op);
  return impl_->collective(request, input, [full, part, reduction](Link& link, Algorithm algorithm) {
    comm::reduce_scatter(link, algorithm, full.elements(), part.data(), reduction);
    part.write_back();
  });
}

Work Communicator::all_to_all(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  const Impl::Request request{.collective = Collective::kAllToAll, .options = options, .numel = input.numel()};
  impl_->check(request, input);
  impl_->check(request, output);
  LOCKSTEP_CHECK(input.numel() == output.numel() && input.scalar_type() == output.scalar_type() &&
                     input.device() == output.device() && input.numel() % size() == 0,
                 Impl::name(request), ": ", input.numel(), " and ", output.numel(), " elements for ", size(), " ranks");
  if (!impl_->alone() && impl_->by_backend(input)) {
    LOCKSTEP_CHECK(input.numel() == 0 || input.data_ptr() != output.data_ptr(), Impl::name(request), " in place");
    return impl_->launch_collective(request, input, output);
  }
  const HostTensor in(input), out(output);
  if (impl_->alone()) {
    if (out.data() != in.data()) std::memcpy(out.data(), in.data(), in.bytes());
    out.write_back();
    return {};
  }
  return impl_->collective(request, input, [in, out](Link& link, Algorithm) {
    comm::all_to_all(link, in.elements(), out.data());
    out.write_back();
  });
}

Work Communicator::gather(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kGather, .options = options, .numel = input.numel() * size(), .root = root};
  const bool receives = rank() == root;
  receives ? impl_->check_parts(request, input, output) : impl_->check(request, input);
  if (!impl_->alone() && impl_->by_backend(input))
    return impl_->launch_collective(request, input, receives ? output : at::Tensor());
  const HostTensor part(input), full = receives ? HostTensor(output) : HostTensor();
  if (impl_->alone()) {
    if (full.data() != part.data()) std::memcpy(full.data(), part.data(), part.bytes());
    full.write_back();
    return {};
  }
  const Elements whole{.data = receives ? full.data() : nullptr, .numel = request.numel, .size = part.elements().size};
  return impl_->collective(request, input, [part, full, whole, receives, root](Link& link, Algorithm) {
    comm::gather(link, part.data(), whole, root);
    if (receives) full.write_back();
  });
}

Work Communicator::scatter(const at::Tensor& input, const at::Tensor& output, int root, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kScatter, .options = options, .numel = output.numel() * size(), .root = root};
  const bool gives = rank() == root;
  gives ? impl_->check_parts(request, output, input) : impl_->check(request, output);
  if (!impl_->alone() && impl_->by_backend(output))
    return impl_->launch_collective(request, gives ? input : at::Tensor(), output);
  const HostTensor part(output), full = gives ? HostTensor(input) : HostTensor();
  if (impl_->alone()) {
    if (full.data() != part.data()) std::memcpy(part.data(), full.data(), part.bytes());
    part.write_back();
    return {};
  }
  const Elements whole{.data = gives ? full.data() : nullptr, .numel = request.numel, .size = part.elements().size};
  return impl_->collective(request, output, [part, full, whole, root](Link& link, Algorithm) {
    comm::scatter(link, whole, part.data(), root);
    part.write_back();
  });
}

Work Communicator::send(const at::Tensor& tensor, int peer, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kSend, .options = options, .numel = tensor.numel(), .root = peer};
  if (impl_->by_backend(tensor)) return impl_->launch(request, impl_->message(request, tensor, {}), tensor, {});
  return impl_->run(request, impl_->message(request, tensor, [buffer = HostTensor(tensor), peer](Link& link) {
    link.send(peer, {buffer.data(), buffer.bytes()});
  }));
}

Work Communicator::recv(const at::Tensor& tensor, int peer, const CallOptions& options) {
  const Impl::Request request{
      .collective = Collective::kRecv, .options = options, .numel = tensor.numel(), .root = peer};
  if (impl_->by_backend(tensor)) return impl_->launch(request, impl_->message(request, tensor, {}), {}, tensor);
  return impl_->run(request, impl_->message(request, tensor, [buffer = HostTensor(tensor), peer](Link& link) {
    link.recv(peer, {buffer.data(), buffer.bytes()});
    buffer.write_back();
  }));
}

Work Communicator::barrier(const CallOptions& options) {
  if (impl_->alone()) return {};
  const Impl::Request request{.collective = Collective::kBarrier, .options = options, .numel = 1};
  return impl_->collective(request, {}, [](Link& link, Algorithm) { comm::barrier(link); });
}

}  // namespace lockstep::comm
