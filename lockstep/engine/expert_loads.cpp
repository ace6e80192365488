#include "lockstep/engine/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

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
    const auto of_layer = loads.subspan(static_cast<size_t>(layout.load_offset(layer.index)), experts + static_cast<size_t>(arch::load_extras(layout.moe)));
    all.push_back({.layer = layer.index,
                   .name = layer.name,
                   .routed = of_layer.first(experts),
                   .dropped = of_layer[experts],
                   .aux_sum = of_layer[experts + 1],
                   .z_sum = of_layer[experts + 2],
                   .further_rounds = layout.moe.imbalance_limit ? of_layer[experts + 3] : 0});
  }
  return all;
}

Json routed_json(const program::Layout& layout, std::span<const double> loads) {
  Json json = Json::object();
  if (loads.empty()) return json;
  for (const ExpertLoad& load : expert_loads(layout, loads)) {
    std::vector<int64_t> counts;
    for (const double routed : load.routed) counts.push_back(std::llround(routed));
    json[load.name] = counts;
  }
  return json;
}

std::vector<double> loads_of_json(const program::Layout& layout, const Json& json) {
  if (json.empty()) return {};
  const auto refuse = [](const std::string& why) -> void {
    throw CheckpointError({.code = "LS1302", .what = cat("not the loads of this model's experts: ", why)});
  };
  std::vector<double> loads(static_cast<size_t>(layout.load_numbers()), 0.0);
  for (const ExpertLoad& load : expert_loads(layout, loads)) {
    std::vector<double> counts;
    try {
      counts = json.at(load.name).get<std::vector<double>>();
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
    if (counts.size() != load.routed.size()) refuse(cat(load.name, " has ", counts.size(), ", the model ", load.routed.size()));
    for (size_t expert = 0; expert < counts.size(); ++expert)
      if (counts[expert] < 0) refuse(cat(load.name, " has ", counts[expert], " assignments to expert ", expert));
    // Shares of them would be no numbers.
    if (std::accumulate(counts.begin(), counts.end(), 0.0) == 0) refuse(cat(load.name, " has no assignment to any of ", counts.size(), " experts"));
    std::ranges::copy(counts, loads.begin() + static_cast<ptrdiff_t>(layout.load_offset(load.layer)));
  }
  return loads;
}

}  // namespace lockstep::engine
