#include "lockstep/train/verify_compare.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

// What is no number is as large as can be.
double number(double value) { return std::isnan(value) ? INFINITY : value; }

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0.0 : number(tensor.abs().max().item<double>()); }

double relative(double difference, double reference) {
  return reference > 0 ? number(difference / reference) : difference > 0 ? INFINITY : 0;
}

// Two updates from one state differ by rounding in four products and sums, two on each side.
constexpr double kUpdateRounding = 4 * 0x1p-24;

// How far a step moves a value, about: the learning rate, or that of a router's bias.
double step_length(const arch::ParamSpec& spec, const program::Layout& of, double lr) {
  const bool balance = spec.update.optimizer == &arch::optimizer_spec("balance");
  return balance ? of.moe.bias_rate : lr;
}

// The error of an update beyond rounding, in steps of that length; where that is 0 the difference itself.
struct ParameterError {
  double judged = 0;  // where the gradient stands out of its noise
  double anywhere = 0;
};
ParameterError parameter_error(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& judged, double length) {
  const at::Tensor reference = expected.to(at::kDouble);
  const at::Tensor excess = at::sub(actual.to(at::kDouble), reference).abs().sub(reference.abs(), kUpdateRounding).clamp_min(0);
  const double unit = length > 0 ? length : 1;
  return {largest(at::where(judged, excess, at::zeros_like(excess))) / unit, largest(excess) / unit};
}

}  // namespace

bool gradient_vanishes(const arch::ParamSpec& spec, const program::Layout& layout) {
  const auto is = [&](std::string_view part) { return spec.name.find(part) != std::string::npos; };
  const arch::ModelConfig& model = layout.model;
  if (is(".attention.k.bias") && model.traits().learned_positions && !model.qk_norm) return true;
  if (layout.seq_len > 1) return false;
  if (model.has_latent()) return is(".attention.q_a.") || is(".attention.q_a_norm.") || is(".attention.q_b.");
  return is(".attention.q.") || is(".attention.k.") || is(".attention.q_norm.") || is(".attention.k_norm.");
}

std::vector<double> gradient_scales(const std::vector<at::Tensor>& gradients, const program::Layout& layout) {
  const std::vector<arch::ParamSpec> table = arch::param_table(layout.model);
  std::vector<double> own, scales;
  for (const at::Tensor& gradient : gradients) own.push_back(largest(gradient));
  for (size_t row = 0; row < table.size(); ++row) {
    const arch::ParamSpec& spec = table[row];
    double scale = own[row];
    for (size_t other = 0; other < table.size() && gradient_vanishes(spec, layout); ++other) {
      const bool fused = !spec.fuse.empty() && table[other].fuse == spec.fuse;
      const bool of_v = spec.fuse.empty() && table[other].layer == spec.layer &&
                        (table[other].name.ends_with(".attention.v.weight") || table[other].name.ends_with(".attention.kv_b.weight"));
      if (fused || of_v) scale = std::max(scale, own[other]);
    }
    scales.push_back(scale);
  }
  return scales;
}

void compare_gradients(const WholeState& layout, const WholeState& twin, const std::vector<double>& scales,
                       const program::Layout& of, VerifyStep& step) {
  const std::vector<arch::ParamSpec> table = arch::param_table(of.model);
  for (size_t row = 0; row < table.size(); ++row) {
    const double difference = largest(at::sub(layout.gradients[row].to(at::kDouble), twin.gradients[row].to(at::kDouble)));
    const double error = relative(difference, scales[row]);
    if (!step.worst_gradient.empty() && error <= step.max_gradient_error) continue;
    step.max_gradient_error = error;
    step.worst_gradient = table[row].name;
  }
}

void compare_parameters(const WholeState& layout, const WholeState& twin, const std::vector<double>& scales,
                        const program::Layout& of, const Tolerances& tolerances, VerifyStep& step) {
  const std::vector<arch::ParamSpec> table = of.param_table(0);
  for (size_t row = 0; row < table.size(); ++row) {
    const at::Tensor judged = twin.gradients[row].abs().ge(tolerances.noise_floor * scales[row]);
    const ParameterError error =
        parameter_error(layout.values[row], twin.values[row], judged, step_length(table[row], of, step.learning_rate));
    if (step.worst_parameter.empty() || error.judged > step.max_parameter_error) {
      step.max_parameter_error = error.judged;
      step.worst_parameter = table[row].name;
    }
    constexpr double bound = 2.001;
    if (!step.alone && !(error.anywhere <= (step.learning_rate > 0 ? bound : 0)))
      step.failures.push_back(cat(table[row].name, " moved ", error.anywhere, " learning rates apart, more than ", bound));
  }
}

Distance distance_of(const WholeState& a, const WholeState& b, const program::Layout& layout) {
  const std::vector<arch::ParamSpec> table = arch::param_table(layout.model);
  const auto distance = [&](const std::vector<at::Tensor>& of_a, const std::vector<at::Tensor>& of_b) {
    double difference = 0, size = 0;
    for (size_t row = 0; row < table.size(); ++row) {
      if (!of_b[row].defined() || gradient_vanishes(table[row], layout)) continue;
      const at::Tensor reference = of_b[row].to(at::kDouble);
      difference += number(at::sub(of_a[row].to(at::kDouble), reference).abs().sum().item<double>());
      size += reference.abs().sum().item<double>();
    }
    return relative(difference, size);
  };
  Distance of{.values = distance(a.values, b.values)};
  for (size_t i = 0; i < b.slots.size(); ++i) of.slots.push_back(distance(a.slots.at(i), b.slots[i]));
  return of;
}

}  // namespace lockstep::train
