#include "lockstep/arch/optimizer.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::arch {

const std::vector<OptimizerSpec>& optimizer_specs() {
  static const std::vector<OptimizerSpec> specs = {
      {.id = "adamw",
       .text = "AdamW",
       .slots_text = "two moments",
       .slots = {{.name = "exp_avg", .text = "first moment"}, {.name = "exp_avg_sq", .text = "second moment"}}},
      {.id = "muon",
       .text = "Muon",
       .slots_text = "momentum",
       .slots = {{.name = "momentum_buffer", .text = "momentum"}},
       .whole_matrix = true},
      // Of a router's bias (config::Balance::kBias).
      {.id = "balance", .text = "bias update", .slots_text = "no state", .fixed = true},
  };
  return specs;
}

const OptimizerSpec& optimizer_spec(std::string_view id) {
  for (const OptimizerSpec& spec : optimizer_specs())
    if (spec.id == id) return spec;
  throw InternalError(cat("no optimizer named ", id));
}

int64_t OptimizerSpec::slot_bytes() const {
  int64_t bytes = 0;
  for (const StateSlot& slot : slots) bytes += config::bytes_of(slot.dtype);
  return bytes;
}

double iteration_flops(int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(std::min(rows, columns)), k = static_cast<double>(std::max(rows, columns));
  return 4 * m * m * k + 2 * m * m * m;
}

}  // namespace lockstep::arch
