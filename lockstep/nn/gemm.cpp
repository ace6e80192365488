#include "lockstep/nn/gemm.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <optional>
#include <string_view>

#include "lockstep/nn/gemm_rows.h"

namespace lockstep::nn {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using OnednnLinear = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                std::string_view attribute, Scalars scalars, std::optional<std::string_view> algorithm);

// Absent where LibTorch was built without oneDNN.
const std::optional<c10::TypedOperatorHandle<OnednnLinear>>& onednn_linear() {
  static const auto handle = [] {
    std::optional<c10::TypedOperatorHandle<OnednnLinear>> typed;
    if (const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""}))
      typed = found->typed<OnednnLinear>();
    return typed;
  }();
  return handle;
}

// On the shapes of transformer blocks oneDNN's fp32 products took 4 to 15 % less CPU time than MKL's (AMD EPYC with
// AVX-512, one thread).
bool served_by_onednn(const at::Tensor& rows) {
  return rows.is_cpu() && rows.scalar_type() == at::kFloat && rows.size(0) > 1 && onednn_linear();
}

// A step of generation: a few rows and a weight as it lies in memory.
bool are_few(const at::Tensor& rows, const at::Tensor& weight_t) {
  return rows.is_cpu() && rows.scalar_type() == at::kFloat && rows.size(0) <= kFewRows && rows.is_contiguous() &&
         weight_t.t().is_contiguous();
}

}  // namespace

at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight_t, const at::Tensor& bias) {
  if (are_few(rows, weight_t)) return multiply_few_rows(rows, weight_t.t(), bias);
  if (served_by_onednn(rows)) {
    const auto optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
    return onednn_linear()->call(rows, weight_t.t(), optional_bias, "none", Scalars(), std::nullopt);
  }
  return bias.defined() ? at::addmm(bias, rows, weight_t) : at::mm(rows, weight_t);
}

}  // namespace lockstep::nn
