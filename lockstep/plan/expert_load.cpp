#include "lockstep/plan/expert_load.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

struct Loads {
  std::vector<double> routed, dropped;
};

// "12 40 8" of each layer, one behind the other, and what is dropped; nothing where one is missing or has other experts.
std::optional<Loads> loads_of(const Json& event, const LoadHistory& history) {
  Loads loads;
  for (const std::string& layer : history.layers()) {
    const std::string dropped = layer + "/dropped";
    if (!event.contains(layer) || !event[layer].is_string() || !event.contains(dropped) || !event[dropped].is_number()) return std::nullopt;
    loads.dropped.push_back(event[dropped].get<double>());
    const std::vector<std::string> numbers = split(event[layer].get<std::string>(), ' ');
    if (std::ssize(numbers) != history.experts()) return std::nullopt;
    for (const std::string& number : numbers) {
      const auto load = parse_number<double>(number);
      if (!load) return std::nullopt;
      loads.routed.push_back(*load);
    }
  }
  return loads;
}

double sum_of(std::span<const double> loads) { return std::accumulate(loads.begin(), loads.end(), 0.0); }

// Of a layer; 1 where nothing was routed, by which all can be divided.
double mean_of(std::span<const double> loads) {
  const double sum = sum_of(loads);
  return (sum > 0 ? sum : 1) / static_cast<double>(loads.size());
}

}  // namespace

void LoadColumn::add(const LoadColumn& next) {
  const auto sum = [](std::vector<double>& all, const std::vector<double>& more) {
    std::ranges::transform(all, more, all.begin(), std::plus());
  };
  last = next.last;
  steps += next.steps;
  sum(routed, next.routed);
  sum(dropped, next.dropped);
  sum(max_over_mean, next.max_over_mean);
}

void LoadHistory::add(int64_t step, std::span<const double> routed, std::span<const double> dropped) {
  LOCKSTEP_CHECK(step >= 1, "step ", step);
  LOCKSTEP_CHECK_EQ(std::ssize(routed), std::ssize(layers_) * experts_, "loads of ", layers_.size(), " layers");
  LOCKSTEP_CHECK_EQ(dropped.size(), layers_.size(), "layers that drop");
  while (!columns_.empty() && columns_.back().last >= step) columns_.pop_back();
  LoadColumn column{.first = step, .last = step, .steps = 1, .routed = {routed.begin(), routed.end()}, .dropped = {dropped.begin(), dropped.end()}};
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto loads = routed.subspan(layer * static_cast<size_t>(experts_), static_cast<size_t>(experts_));
    column.max_over_mean.push_back(std::ranges::max(loads) / mean_of(loads));
  }
  append(std::move(column));
  while (columns_.size() > kMost) {
    width_ *= 2;
    for (LoadColumn& column : std::exchange(columns_, {})) append(std::move(column));
  }
}

void LoadHistory::append(LoadColumn column) {
  if (!columns_.empty() && column_of(columns_.back().first) == column_of(column.first))
    columns_.back().add(column);
  else
    columns_.push_back(std::move(column));
}

void read_loads(const std::filesystem::path& metrics, int64_t last, LoadHistory& history) {
  std::ifstream stream(metrics);
  for (std::string line; std::getline(stream, line);) {
    if (line.find("\"expert_load\"") == std::string::npos) continue;
    try {
      const Json event = parse_json(line, metrics.string());
      const int64_t step = event.value("step", int64_t{0});
      if (event.value("event", "") != "expert_load" || step < 1 || step > last) continue;
      if (const auto loads = loads_of(event, history)) history.add(step, loads->routed, loads->dropped);
    } catch (const DataError&) {  // a line that was cut off
      continue;
    } catch (const Json::exception&) {  // another form
      continue;
    }
  }
}

std::vector<LayerLoad> last_loads(const LoadHistory& history) {
  const std::vector<LoadColumn>& columns = history.columns();
  if (columns.empty()) return {};
  const size_t behind = columns.size() - (columns.size() + 9) / 10;
  LoadColumn sums = columns[behind];
  for (size_t i = behind + 1; i < columns.size(); ++i) sums.add(columns[i]);
  std::vector<LayerLoad> layers;
  const auto experts = static_cast<size_t>(history.experts());
  for (size_t begin = 0; begin < sums.routed.size(); begin += experts) {
    const std::span<const double> loads = std::span(sums.routed).subspan(begin, experts);
    const double mean = mean_of(loads), dropped = sums.dropped[begin / experts];
    const auto [smallest, largest] = std::ranges::minmax(loads);
    LayerLoad& layer = layers.emplace_back(
        LayerLoad{.largest = largest / mean, .smallest = smallest / mean, .dropped = dropped / (mean * static_cast<double>(experts))});
    for (size_t e = 0; e < experts; ++e) {
      if (loads[e] > 0) continue;
      const auto lived = std::find_if(columns.rbegin(), columns.rend(), [&](const LoadColumn& column) { return column.routed[begin + e] > 0; });
      layer.dead.push_back({.expert = static_cast<int64_t>(e), .last_step = lived == columns.rend() ? 0 : lived->last});
    }
  }
  return layers;
}

}  // namespace lockstep::plan
