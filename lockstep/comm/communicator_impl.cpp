#include "lockstep/comm/communicator_impl.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"

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

}  // namespace

Communicator::Impl::Impl(std::unique_ptr<Transport> transport, const CommunicatorOptions& given)
    : options(given),
      has_board(transport->board() != nullptr),
      queue(std::move(transport), given),
      stager(given.stager ? given.stager : make_stager()),
      sent_to(given.ranks.size()),
      received_from(given.ranks.size()) {}

std::string Communicator::Impl::name(const Request& request) { return name_of(request.collective, request.options); }

ElementType Communicator::Impl::type_of(const Request& request, const at::Tensor& tensor) {
  return element_type(tensor, request.collective, request.options);
}

void Communicator::Impl::check(const Request& request, const at::Tensor& tensor) const {
  LOCKSTEP_CHECK(tensor.defined() && tensor.is_contiguous(), name(request), ": the tensor is not contiguous");
  type_of(request, tensor);
}

void Communicator::Impl::check_parts(const Request& request, const at::Tensor& part, const at::Tensor& full) const {
  check(request, part);
  check(request, full);
  LOCKSTEP_CHECK_EQ(part.numel() * size(), full.numel(), name(request), ": part times ranks is not the whole");
  LOCKSTEP_CHECK(part.scalar_type() == full.scalar_type() && part.device() == full.device(), name(request),
                 ": two element types or devices");
}

void Communicator::Impl::check_rows(const Request& request, const at::Tensor& tensor, std::span<const int64_t> rows) const {
  check(request, tensor);
  LOCKSTEP_CHECK(tensor.dim() > 0 && rows.size() == options.ranks.size(), name(request), ": rows of ", rows.size(),
                 " ranks, of ", tensor.dim(), " dimensions");
  LOCKSTEP_CHECK(std::all_of(rows.begin(), rows.end(), [](int64_t count) { return count >= 0; }), name(request),
                 ": a number of rows is negative");
  LOCKSTEP_CHECK_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), tensor.size(0), name(request),
                    ": the rows of all ranks are not those of the tensor");
}

Call Communicator::Impl::make_call(const Request& request, const at::Tensor& sample) const {
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

Call Communicator::Impl::numbered_call(const Request& request, const at::Tensor& sample) {
  Call call = make_call(request, sample);
  call.header.id = request.options.id;
  call.header.sequence = ++collectives;
  call.progress = {.sequence = collectives,
                   .call = {.id = request.options.id, .number = collectives, .collective = request.collective},
                   .on_board = has_board && on_board(request.collective, call.key.algorithm)};
  return call;
}

Work Communicator::Impl::on_host(const Request& request, Call call, const Operands& operands, Body body) {
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

Work Communicator::Impl::collective(const Request& request, const Operands& operands, Body body) {
  const at::Tensor& any = operands[0].tensor.defined() ? operands[0].tensor : operands[1].tensor;
  return on_host(request, numbered_call(request, any), operands, std::move(body));
}

Call Communicator::Impl::message(const Request& request, const at::Tensor& tensor) {
  check(request, tensor);
  LOCKSTEP_CHECK(request.root != rank(), name(request), " to itself");
  Call call = make_call(request, tensor);
  const bool sends = request.collective == Collective::kSend;
  call.header.collective = static_cast<int8_t>(Collective::kSend);
  call.header.root = sends ? request.root : rank();
  call.header.sequence = ++(sends ? sent_to : received_from)[static_cast<size_t>(request.root)];
  call.progress = {.sequence = collectives,
                   .call = {.id = request.options.id,
                            .peer = options.ranks[static_cast<size_t>(request.root)],
                            .number = call.header.sequence,
                            .collective = request.collective}};
  return call;
}

Work Communicator::Impl::launch(const Request& request, const Call& call, const at::Tensor& input, const at::Tensor& output) {
  const int64_t flight = queue.flights().enter(call.progress.call, call.payload);
  auto state = std::make_shared<Work::State>();
  state->native = native->start({.collective = request.collective,
                                 .op = request.options.op,
                                 .root = request.root,
                                 .input = input,
                                 .output = output,
                                 .parts = request.parts,
                                 .progress = call.progress,
                                 .left = [this, flight] { queue.flights().leave(flight); },
                                 .explain = [this](std::exception_ptr problem) { return queue.explained(problem); }});
  const at::Tensor& any = input.defined() ? input : output;
  queue.record(call.key, call.payload, sends(request, call, static_cast<int64_t>(any.element_size())));
  return Work(state);
}

std::map<int, int64_t> Communicator::Impl::sends(const Request& request, const Call& call, int64_t element_bytes) const {
  if (request.parts.sent.empty())
    return program::predicted_sends({.collective = request.collective,
                                     .algorithm = call.key.algorithm,
                                     .group = options.ranks,
                                     .numel = request.numel,
                                     .element_size = element_bytes,
                                     .root = request.root},
                                    rank());
  std::map<int, int64_t> sent;
  for (size_t peer = 0; peer < options.ranks.size(); ++peer)
    if (static_cast<int>(peer) != rank() && request.parts.sent[peer] > 0)
      sent[options.ranks[peer]] = request.parts.sent[peer] * element_bytes;
  return sent;
}

}  // namespace lockstep::comm
