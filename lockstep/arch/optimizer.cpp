#include "lockstep/arch/optimizer.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

constexpr int64_t kValueBytes = 4;  // fp32

}  // namespace

const std::vector<OptimizerSpec>& optimizer_specs() {
  static const std::vector<OptimizerSpec> specs = {
      {.id = "adamw",
       .slots_text = "two moments",
       .slots = {{.name = "exp_avg", .text = "first moment"}, {.name = "exp_avg_sq", .text = "second moment"}}},
      {.id = "muon",
       .slots_text = "momentum",
       .slots = {{.name = "momentum_buffer", .text = "momentum"}},
       .whole_matrix = true},
  };
  return specs;
}

const OptimizerSpec& optimizer_spec(std::string_view id) {
  for (const OptimizerSpec& spec : optimizer_specs())
    if (spec.id == id) return spec;
  throw InternalError(cat("no optimizer named ", id));
}

int64_t StateSlot::element_size() const { return dtype == config::Precision::kBf16 ? 2 : 4; }

int64_t OptimizerSpec::slot_bytes() const {
  int64_t bytes = 0;
  for (const StateSlot& slot : slots) bytes += slot.element_size();
  return bytes;
}

int64_t OptimizerSpec::update_bytes() const { return kValueBytes + slot_bytes(); }

size_t OptimizerSpec::slot_index(std::string_view name) const {
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].name == name) return i;
  throw InternalError(cat(id, " has no slot named ", name));
}

OptimizerChoice optimizer_choice(const config::OptimizerSection& section) {
  return {.kind = section.kind, .rules = section.rules, .iterations = section.ns_steps, .iterate_in = section.ns_precision};
}

double iteration_flops(int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(std::min(rows, columns)), k = static_cast<double>(std::max(rows, columns));
  return 4 * m * m * k + 2 * m * m * m;
}

}  // namespace lockstep::arch
