#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"

namespace lockstep::optim {
namespace {

using Section = config::OptimizerSection;

AdamWOptions adamw_options(const Section& section) {
  return {.beta1 = section.beta1, .beta2 = section.beta2, .eps = section.eps, .weight_decay = section.weight_decay};
}

MuonOptions muon_options(const Section& section) {
  return {.momentum = section.momentum,
          .nesterov = section.nesterov,
          .weight_decay = section.muon_weight_decay.value_or(section.weight_decay),
          .iterations = section.ns_steps,
          .iterate_in = section.ns_precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat,
          .scale = section.muon_scale};
}

// Its own peak on the way of the other's.
StepPoint muon_point(const Section& section, StepPoint point) {
  if (section.muon_lr) point.lr *= *section.muon_lr / section.lr;
  return point;
}

// What is registered in arch/optimizer.cpp, as functions.
struct Functions {
  std::string_view id;
  void (*step)(const std::vector<Parameter>&, const Section&, const StepPoint&) = nullptr;
  UpdateFormula (*formula)(const Section&, const StepPoint&, bool decay) = nullptr;
  // Null: element by element.
  at::Tensor (*direction)(const Parameter&, const Section&, const StepPoint&) = nullptr;
  at::Tensor (*orthogonal)(const at::Tensor&, const Section&) = nullptr;
  void (*apply)(const Parameter&, const at::Tensor&, const MatrixShape&, const Section&, const StepPoint&) = nullptr;
};

constexpr std::array kFunctions = {
    Functions{.id = "adamw",
              .step = [](const std::vector<Parameter>& parameters, const Section& section,
                         const StepPoint& point) { adamw_step(parameters, adamw_options(section), point); },
              .formula = [](const Section& section, const StepPoint& point,
                            bool decay) { return adamw_formula(adamw_options(section), point, decay); }},
    Functions{.id = "muon",
              .step = [](const std::vector<Parameter>& parameters, const Section& section,
                         const StepPoint& point) { muon_step(parameters, muon_options(section), muon_point(section, point)); },
              .formula = [](const Section& section, const StepPoint& point,
                            bool) { return muon_formula(muon_options(section), point); },
              .direction = [](const Parameter& piece, const Section& section,
                              const StepPoint& point) { return muon_direction(piece, muon_options(section), point); },
              .orthogonal = [](const at::Tensor& matrix,
                               const Section& section) { return newton_schulz(matrix, muon_options(section)); },
              .apply = [](const Parameter& piece, const at::Tensor& of_piece, const MatrixShape& shape, const Section& section,
                          const StepPoint& point) {
                muon_apply(piece, of_piece, shape.rows, shape.columns, muon_options(section), muon_point(section, point));
              }},
};

const Functions& functions_of(const arch::OptimizerSpec& optimizer) {
  for (const Functions& functions : kFunctions)
    if (functions.id == optimizer.id) return functions;
  throw InternalError(cat("no step function of ", optimizer.id));
}

const Functions& whole_matrix(const arch::OptimizerSpec& optimizer) {
  const Functions& functions = functions_of(optimizer);
  LOCKSTEP_CHECK(functions.direction != nullptr, optimizer.id, " is no optimizer of whole matrices");
  return functions;
}

}  // namespace

void step(const arch::OptimizerSpec& optimizer, const std::vector<Parameter>& parameters, const Section& options,
          const StepPoint& point) {
  for (const Parameter& parameter : parameters)
    LOCKSTEP_CHECK_EQ(parameter.slots.size(), optimizer.slots.size(), "slots of ", optimizer.id);
  functions_of(optimizer).step(parameters, options, point);
}

Section options_of(const arch::UpdateRule& rule, const Section& options) {
  Section own = options;
  if (rule.weight_decay) {
    own.weight_decay = *rule.weight_decay;
    own.muon_weight_decay = rule.weight_decay;
  }
  return own;
}

StepPoint point_of(const arch::UpdateRule& rule, const StepPoint& point) {
  StepPoint own = point;
  if (rule.lr_factor != 1) own.lr *= rule.lr_factor;
  return own;
}

// Those of one rule together, in their order.
void step(const std::vector<Parameter>& parameters, const Section& options, const StepPoint& point) {
  const auto run = [&](const std::vector<Parameter>& alike) {
    const arch::UpdateRule& rule = alike.front().rule;
    step(*rule.optimizer, alike, options_of(rule, options), point_of(rule, point));
  };
  if (parameters.empty()) return;
  const auto other = [&](const Parameter& parameter) { return parameter.rule != parameters.front().rule; };
  if (std::none_of(parameters.begin(), parameters.end(), other)) return run(parameters);
  std::vector<std::vector<Parameter>> groups;
  for (const Parameter& parameter : parameters) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const std::vector<Parameter>& alike) { return alike.front().rule == parameter.rule; });
    if (group == groups.end())
      groups.push_back({parameter});
    else
      group->push_back(parameter);
  }
  for (const std::vector<Parameter>& alike : groups) run(alike);
}

at::Tensor direction(const Parameter& piece, const Section& options, const StepPoint& point) {
  return whole_matrix(*piece.rule.optimizer).direction(piece, options_of(piece.rule, options), point_of(piece.rule, point));
}

at::Tensor orthogonal(const arch::OptimizerSpec& optimizer, const at::Tensor& matrix, const Section& options) {
  return whole_matrix(optimizer).orthogonal(matrix, options);
}

void apply(const Parameter& piece, const at::Tensor& orthogonal_piece, const MatrixShape& shape, const Section& options,
           const StepPoint& point) {
  whole_matrix(*piece.rule.optimizer)
      .apply(piece, orthogonal_piece, shape, options_of(piece.rule, options), point_of(piece.rule, point));
}

UpdateFormula update_formula(const arch::OptimizerSpec& optimizer, const Section& options, const StepPoint& point, bool decay) {
  return functions_of(optimizer).formula(options, point, decay);
}

}  // namespace lockstep::optim
