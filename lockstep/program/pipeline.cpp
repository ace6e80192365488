#include "lockstep/program/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/check.h"
#include "lockstep/config/fields.h"

namespace lockstep::program {
namespace {

// What the layers in front of each one cost together, and at the end all of them.
std::vector<double> summed_costs(const arch::ModelConfig& model, const arch::CostInput& input) {
  std::vector<double> sums = {0};
  std::map<int, arch::LayerCost> known;  // layers of one pattern cost the same
  for (const arch::LayerSpec& layer : arch::layer_table(model)) {
    const auto [cost, fresh] = known.try_emplace(arch::layer_pattern(model, layer));
    if (fresh) cost->second = arch::layer_cost(model, layer, input);
    sums.push_back(sums.back() + cost->second.forward_flops + cost->second.backward_flops);
  }
  return sums;
}

}  // namespace

std::string schedule_name(ScheduleKind kind) { return config::name_of(kind); }

int Pipeline::rank_of(int stage) const {
  const int lap = stage / ranks, place = stage % ranks;
  return (grid_in_v || v_shaped(kind)) && lap % 2 == 1 ? ranks - 1 - place : place;
}

int Pipeline::stage_of(int layer) const {
  if (first_layer.empty()) return 0;
  LOCKSTEP_CHECK(layer >= 0 && layer < first_layer.back(), "layer ", layer, " of ", first_layer.back());
  return static_cast<int>(std::upper_bound(first_layer.begin(), first_layer.end(), layer) - first_layer.begin()) - 1;
}

std::vector<int> Pipeline::stages_of(int rank) const {
  std::vector<int> found;
  for (int stage = 0; stage < stages(); ++stage)
    if (rank_of(stage) == rank) found.push_back(stage);
  return found;
}

// least[s][i]: of layers [0, i) in s stages, the dearest stage of the best cut.
std::vector<int> balanced_stages(const arch::ModelConfig& model, const arch::CostInput& input, int stages) {
  const std::vector<double> sums = summed_costs(model, input);
  const int layers = static_cast<int>(sums.size()) - 1, blocks = layers - 2;
  const bool a_block_each = blocks >= stages;
  const auto cost = [&](int begin, int end) {
    const int inner = std::min(end, layers - 1) - std::max(begin, 1);
    if (a_block_each && inner < 1) return std::numeric_limits<double>::infinity();
    return sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)];
  };
  LOCKSTEP_CHECK(stages >= 1 && stages <= layers, stages, " stages of ", layers, " layers");
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<double>> least(static_cast<size_t>(stages), std::vector<double>(width, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> cut(static_cast<size_t>(stages), std::vector<int>(width, 0));
  for (int end = 1; end <= layers; ++end) least[0][static_cast<size_t>(end)] = cost(0, end);
  for (size_t stage = 1; stage < least.size(); ++stage)
    for (int end = static_cast<int>(stage) + 1; end <= layers; ++end)
      for (int begin = static_cast<int>(stage); begin < end; ++begin) {
        const double dearest = std::max(least[stage - 1][static_cast<size_t>(begin)], cost(begin, end));
        double& best = least[stage][static_cast<size_t>(end)];
        if (dearest >= best) continue;
        best = dearest;
        cut[stage][static_cast<size_t>(end)] = begin;
      }
  std::vector<int> first(static_cast<size_t>(stages) + 1, layers);
  for (size_t stage = first.size() - 1; stage-- > 0;)
    first[stage] = stage == 0 ? 0 : cut[stage][static_cast<size_t>(first[stage + 1])];
  return first;
}

std::vector<int> stages_of_blocks(const std::vector<int>& blocks) {
  std::vector<int> first = {0};
  int next = 1;
  for (const int count : blocks) first.push_back(next += count);
  first.back() += 1;
  return first;
}

}  // namespace lockstep::program
