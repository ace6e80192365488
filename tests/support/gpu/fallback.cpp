#include "support/gpu/fallback.h"

#include <ATen/DeviceGuard.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/gpu/host_view.h"
#include "support/gpu/streams.h"
#include "support/gpu/synchronisations.h"

namespace lockstep::testing::gpu {
namespace {

using c10::IValue;
using Values = std::vector<IValue>;

// Their result's size, or its truth, depends on values: CUDA's kernels wait for those.
const std::set<std::string>& operators_that_wait() {
  static const std::set<std::string> names = {"aten::nonzero",      "aten::masked_select", "aten::_unique",
                                              "aten::_unique2",     "aten::unique_dim",    "aten::unique_consecutive",
                                              "aten::equal",        "aten::bincount",      "aten::repeat_interleave",
                                              "aten::unique_dim_consecutive"};
  return names;
}

std::vector<at::Tensor> tensors_of(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> tensors;
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      tensors.push_back(tensor.value_or(at::Tensor()));
  return tensors;
}

// The one that all tensors are on.
c10::Device device_of(const c10::OperatorHandle& op, const Values& arguments) {
  std::optional<c10::Device> device;
  for (const IValue& argument : arguments) {
    if (argument.isDevice() && !device && argument.toDevice().is_cuda()) device = argument.toDevice();
    for (const at::Tensor& tensor : tensors_of(argument))
      if (tensor.defined() && tensor.is_cuda()) device = tensor.device();
  }
  for (const IValue& argument : arguments)
    for (const at::Tensor& tensor : tensors_of(argument))
      TORCH_CHECK(!tensor.defined() || tensor.device() == device || (tensor.is_cpu() && tensor.dim() == 0),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device ? device->str() : "none", " and ", tensor.device(), "! (in ", op.operator_name(), ")");
  return device.value_or(c10::Device(c10::kCUDA, current_device()));
}

IValue host_argument(HostViews& views, const IValue& value, bool written) {
  if (value.isTensor()) return views.view(value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(views.view(tensor, written));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(views.view(*tensor, written)) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  return value;
}

IValue device_result(const HostViews& views, const IValue& value) {
  if (value.isTensor()) return views.lead_back(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(views.lead_back(tensor));
  return list;
}

bool writes(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

// The argument that a return value is, "Tensor(a!)"; null where it is a value of its own.
const IValue* argument_returned(const c10::FunctionSchema& schema, const c10::Argument& returned, const Values& arguments) {
  if (!writes(returned)) return nullptr;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (writes(schema.arguments()[i]) && schema.arguments()[i].alias_info()->beforeSets() == returned.alias_info()->beforeSets())
      return &arguments[i];
  return nullptr;
}

}  // namespace

void run_on_host_memory(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Values arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const c10::DeviceGuard guard(device_of(op, arguments));
  const Kernel kernel;
  if (operators_that_wait().contains(op.operator_name().name)) note_synchronisation("size of " + op.operator_name().name);

  HostViews views;
  for (size_t i = 0; i < count; ++i)
    (*stack)[stack->size() - count + i] = host_argument(views, arguments[i], writes(schema.arguments()[i]));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  views.take_over_resized();
  const size_t results = schema.returns().size();
  for (size_t i = 0; i < results; ++i) {
    IValue& result = (*stack)[stack->size() - results + i];
    const IValue* same = argument_returned(schema, schema.returns()[i], arguments);
    result = same != nullptr ? *same : device_result(views, result);
  }
}

void run_as_it_is(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void run_resize(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Kernel kernel;
  run_as_it_is(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host_memory>()); }

}  // namespace lockstep::testing::gpu
