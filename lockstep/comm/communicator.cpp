#include "lockstep/comm/communicator.h"

#include <c10/util/accumulate.h>

#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/comm/communicator_impl.h"

namespace lockstep::comm {
namespace {

using program::Algorithm;
using program::Collective;

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

}  // namespace

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
  return impl_->rank();
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

Work Communicator::all_to_all_v(const at::Tensor& input, const at::Tensor& output, std::span<const int64_t> send_rows,
                                std::span<const int64_t> receive_rows, const CallOptions& options) {
  Impl::Request request{.collective = Collective::kAllToAll, .options = options, .numel = input.numel()};
  impl_->check_rows(request, input, send_rows);
  impl_->check_rows(request, output, receive_rows);
  const auto own = static_cast<size_t>(rank());
  LOCKSTEP_CHECK(input.sizes().slice(1) == output.sizes().slice(1) && input.scalar_type() == output.scalar_type() &&
                     input.device() == output.device() && send_rows[own] == receive_rows[own],
                 Impl::name(request), ": rows of ", input.sizes(), " and ", output.sizes(), ", ", send_rows[own], " and ",
                 receive_rows[own], " of them to itself");
  if (impl_->alone()) return copy_alone(input, output), Work();
  LOCKSTEP_CHECK(input.numel() == 0 || input.data_ptr() != output.data_ptr(), Impl::name(request), " in place");
  const int64_t width = c10::multiply_integers(input.sizes().slice(1));
  for (const int64_t rows : send_rows) request.parts.sent.push_back(rows * width);
  for (const int64_t rows : receive_rows) request.parts.received.push_back(rows * width);
  if (impl_->by_backend(input)) return impl_->launch_collective(request, input, output);
  return impl_->collective(request, {{{input, Use::kRead}, {output, Use::kWrite}}},
                           [parts = request.parts](Link& link, Algorithm, const HostTensors& host) {
                             comm::all_to_all_v(link, elements_of(host[0]), bytes_of(host[1]), parts);
                           });
}

Work Communicator::shift(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  return impl_->shift({.collective = Collective::kShift, .options = options, .numel = input.numel()}, input, output);
}

Work Communicator::shift_back(const at::Tensor& input, const at::Tensor& output, const CallOptions& options) {
  return impl_->shift({.collective = Collective::kShiftBack, .options = options, .numel = input.numel()}, input, output);
}

Work Communicator::Impl::shift(const Request& request, const at::Tensor& input, const at::Tensor& output) {
  check(request, input);
  check(request, output);
  LOCKSTEP_CHECK(input.numel() == output.numel() && input.scalar_type() == output.scalar_type() && input.device() == output.device(),
                 name(request), ": ", input.numel(), " and ", output.numel(), " elements");
  if (alone()) return copy_alone(input, output), Work();
  LOCKSTEP_CHECK(input.numel() == 0 || input.data_ptr() != output.data_ptr(), name(request), " in place");
  if (by_backend(input)) return launch_collective(request, input, output);
  return collective(request, {{{input, Use::kRead}, {output, Use::kWrite}}},
                    [by = request.collective == Collective::kShift ? 1 : -1](Link& link, Algorithm, const HostTensors& host) {
                      comm::shift(link, elements_of(host[0]), bytes_of(host[1]), by);
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
