#include "lockstep/plan/evidence/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lockstep/base/check.h"

namespace lockstep::plan {
namespace {

constexpr double kNear = 0.05;  // measured times that differ by less have no order

using Rows = std::vector<const Compared*>;

EvidenceGroup group_of(const std::string& name, const Rows& rows) {
  return {.name = name,
          .step = error_stats(rows),
          .order = order_stats(rows, /*same_model=*/false),
          .same_model = order_stats(rows, /*same_model=*/true),
          .memory = memory_stats(rows)};
}

template <typename Name>
std::vector<EvidenceGroup> groups_of(const Rows& rows, const Name& name) {
  std::map<std::string, Rows> by_name;
  for (const Compared* row : rows) by_name[name(row->prediction)].push_back(row);
  std::vector<EvidenceGroup> groups;
  for (const auto& [key, members] : by_name) groups.push_back(group_of(key, members));
  return groups;
}

int sign(double value) { return (value > 0) - (value < 0); }

}  // namespace

double quantile(std::vector<double> values, double share) {
  LOCKSTEP_CHECK(!values.empty());
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(place), above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

ErrorStats error_stats(const Rows& rows) {
  if (rows.empty()) return {};
  std::vector<double> errors, sizes;
  int inside = 0;
  for (const Compared* row : rows) {
    errors.push_back(row->error());
    sizes.push_back(std::abs(row->error()));
    inside += row->in_band();
  }
  const int count = static_cast<int>(rows.size());
  return {.rows = count,
          .median = quantile(sizes, 0.5),
          .p90 = quantile(sizes, 0.9),
          .bias = quantile(errors, 0.5),
          .in_band = static_cast<double>(inside) / count};
}

OrderStats order_stats(const Rows& rows, bool same_model) {
  OrderStats order;
  int64_t agreeing = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const Prediction &a = rows[i]->prediction, &b = rows[j]->prediction;
      if (a.source != b.source || (same_model && (a.model != b.model || a.device != b.device))) continue;
      const double first = rows[i]->device_seconds_per_token(), second = rows[j]->device_seconds_per_token();
      if (std::max(first, second) <= (1 + kNear) * std::min(first, second)) continue;
      ++order.pairs;
      agreeing += sign(first - second) * sign(a.device_seconds_per_token() - b.device_seconds_per_token());
    }
  if (order.pairs > 0) order.tau = static_cast<double>(agreeing) / static_cast<double>(order.pairs);
  return order;
}

std::vector<MemoryStats> memory_stats(const Rows& rows) {
  std::vector<MemoryStats> found;
  for (const MemoryKind kind : {MemoryKind::kAllocated, MemoryKind::kReserved, MemoryKind::kDevice}) {
    std::vector<double> errors, sizes;
    for (const Compared* row : rows) {
      if (!row->memory || row->memory->kind != kind) continue;
      errors.push_back(row->memory_error());
      sizes.push_back(std::abs(row->memory_error()));
    }
    if (errors.empty()) continue;
    found.push_back({.kind = kind,
                     .rows = static_cast<int>(errors.size()),
                     .median = quantile(sizes, 0.5),
                     .worst = *std::ranges::max_element(sizes),
                     .bias = quantile(errors, 0.5)});
  }
  return found;
}

Evidence compare(const std::vector<Prediction>& predictions, const std::vector<MeasuredRun>& measured) {
  LOCKSTEP_CHECK_EQ(predictions.size(), measured.size());
  Evidence evidence;
  for (size_t i = 0; i < predictions.size(); ++i) {
    LOCKSTEP_CHECK_EQ(predictions[i].id, measured[i].id);
    if (!predictions[i].predicted())
      evidence.refused.push_back(predictions[i]);
    else if (!measured[i].seconds)
      ++evidence.unmeasured;
    else
      evidence.rows.push_back({.prediction = predictions[i], .measured = *measured[i].seconds, .memory = measured[i].memory});
  }
  Rows all, judged;
  for (const Compared& row : evidence.rows) {
    all.push_back(&row);
    if (row.prediction.tier != "C") judged.push_back(&row);
  }
  evidence.all = group_of("all", judged);
  evidence.sources = groups_of(judged, [](const Prediction& prediction) { return prediction.source; });
  evidence.devices = groups_of(judged, [](const Prediction& prediction) { return prediction.device; });
  evidence.tiers = groups_of(all, [](const Prediction& prediction) { return prediction.tier; });
  return evidence;
}

}  // namespace lockstep::plan
