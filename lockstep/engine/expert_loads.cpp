#include "lockstep/engine/expert_loads.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"

namespace lockstep::engine {

double ExpertLoad::total() const { return std::accumulate(routed.begin(), routed.end(), 0.0); }

double ExpertLoad::max_over_mean() const {
  const double all = total();
  return all > 0 ? *std::ranges::max_element(routed) * static_cast<double>(routed.size()) / all : 0;
}

std::vector<ExpertLoad> expert_loads(const program::Layout& layout, std::span<const double> loads) {
  LOCKSTEP_CHECK_EQ(std::ssize(loads), layout.load_numbers(), "loads of layers with experts");
  if (loads.empty()) return {};
  const auto experts = static_cast<size_t>(layout.model.experts.count);
  std::vector<ExpertLoad> all;
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
    if (!layout.is_expert_block(layer.index)) continue;
    const auto of_layer = loads.subspan(static_cast<size_t>(layout.load_offset(layer.index)), experts + static_cast<size_t>(program::kLoadExtras));
    all.push_back({.layer = layer.index,
                   .name = layer.name,
                   .routed = of_layer.first(experts),
                   .dropped = of_layer[experts],
                   .aux_sum = of_layer[experts + 1],
                   .z_sum = of_layer[experts + 2]});
  }
  return all;
}

}  // namespace lockstep::engine
