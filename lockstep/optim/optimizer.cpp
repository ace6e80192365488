#include "lockstep/optim/optimizer.h"

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

MuonOptions muon_options(const Section& section) { return {.weight_decay = section.weight_decay}; }

// What is registered in arch/optimizer.cpp, as functions.
struct Functions {
  std::string_view id;
  void (*step)(const std::vector<Parameter>&, const Section&, const StepPoint&) = nullptr;
  UpdateFormula (*formula)(const Section&, const StepPoint&, bool decay) = nullptr;  // null: not element by element
};

constexpr std::array kFunctions = {
    Functions{.id = "adamw",
              .step = [](const std::vector<Parameter>& parameters, const Section& section,
                         const StepPoint& point) { adamw_step(parameters, adamw_options(section), point); },
              .formula = [](const Section& section, const StepPoint& point,
                            bool decay) { return adamw_formula(adamw_options(section), point, decay); }},
    Functions{.id = "muon",
              .step = [](const std::vector<Parameter>& parameters, const Section& section,
                         const StepPoint& point) { muon_step(parameters, muon_options(section), point); }},
};

const Functions& functions_of(const arch::OptimizerSpec& optimizer) {
  for (const Functions& functions : kFunctions)
    if (functions.id == optimizer.id) return functions;
  throw InternalError(cat("no step function of ", optimizer.id));
}

}  // namespace

void step(const arch::OptimizerSpec& optimizer, const std::vector<Parameter>& parameters, const Section& options,
          const StepPoint& point) {
  for (const Parameter& parameter : parameters)
    LOCKSTEP_CHECK_EQ(parameter.slots.size(), optimizer.slots.size(), "slots of ", optimizer.id);
  functions_of(optimizer).step(parameters, options, point);
}

UpdateFormula update_formula(const arch::OptimizerSpec& optimizer, const Section& options, const StepPoint& point, bool decay) {
  const Functions& functions = functions_of(optimizer);
  LOCKSTEP_CHECK(functions.formula != nullptr, optimizer.id, " has no formula by element");
  return functions.formula(options, point, decay);
}

}  // namespace lockstep::optim
