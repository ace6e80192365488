#include "lockstep/plan/expert_load.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

void add_to(LoadColumn& column, const LoadColumn& more) {
  column.last = more.last;
  column.steps += more.steps;
  for (size_t i = 0; i < column.routed.size(); ++i) column.routed[i] += more.routed[i];
}

// "12 40 8" of each layer, one behind the other; nothing where one is missing or has other experts.
std::optional<std::vector<double>> loads_of(const Json& event, const LoadHistory& history) {
  std::vector<double> routed;
  for (const std::string& layer : history.layers()) {
    if (!event.contains(layer) || !event[layer].is_string()) return std::nullopt;
    const std::vector<std::string> numbers = split(event[layer].get<std::string>(), ' ');
    if (std::ssize(numbers) != history.experts()) return std::nullopt;
    for (const std::string& number : numbers) {
      const auto load = parse_number<double>(number);
      if (!load) return std::nullopt;
      routed.push_back(*load);
    }
  }
  return routed;
}

}  // namespace

void LoadHistory::add(int64_t step, std::span<const double> routed) {
  LOCKSTEP_CHECK(step >= 1, "step ", step);
  LOCKSTEP_CHECK_EQ(std::ssize(routed), std::ssize(layers_) * experts_, "loads of ", layers_.size(), " layers");
  while (!columns_.empty() && columns_.back().last >= step) columns_.pop_back();
  append({.first = step, .last = step, .steps = 1, .routed = {routed.begin(), routed.end()}});
  while (columns_.size() > kMost) {
    width_ *= 2;
    for (LoadColumn& column : std::exchange(columns_, {})) append(std::move(column));
  }
}

void LoadHistory::append(LoadColumn column) {
  if (!columns_.empty() && column_of(columns_.back().first) == column_of(column.first))
    add_to(columns_.back(), column);
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
      if (const auto routed = loads_of(event, history)) history.add(step, *routed);
    } catch (const DataError&) {  // a line that was cut off
      continue;
    }
  }
}

std::vector<LayerLoad> last_loads(const LoadHistory& history) {
  const std::vector<LoadColumn>& columns = history.columns();
  if (columns.empty()) return {};
  const size_t behind = columns.size() - (columns.size() + 9) / 10;
  std::vector<double> sums(columns.front().routed.size(), 0.0);
  for (size_t i = behind; i < columns.size(); ++i)
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += columns[i].routed[j];
  std::vector<LayerLoad> layers;
  const auto experts = static_cast<size_t>(history.experts());
  for (size_t begin = 0; begin < sums.size(); begin += experts) {
    const std::span<const double> loads = std::span(sums).subspan(begin, experts);
    double all = 0;
    for (const double load : loads) all += load;
    const double mean = std::max(all, 1.0) / static_cast<double>(experts);
    const auto [smallest, largest] = std::ranges::minmax(loads);
    LayerLoad& layer = layers.emplace_back(LayerLoad{.largest = largest / mean, .smallest = smallest / mean});
    for (size_t e = 0; e < experts; ++e) {
      if (loads[e] > 0) continue;
      const auto lived = std::find_if(columns.rbegin(), columns.rend(), [&](const LoadColumn& column) { return column.routed[begin + e] > 0; });
      layer.dead.push_back({.expert = static_cast<int64_t>(e), .last_step = lived == columns.rend() ? 0 : lived->last});
    }
  }
  return layers;
}

}  // namespace lockstep::plan
