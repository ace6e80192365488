#include "lockstep/plan/cluster/device_digits.h"

#include <algorithm>

namespace lockstep::plan {

using mesh::Axis;

DeviceDigits::DeviceDigits(const Placement& placement, const mesh::Mesh& mesh, const mesh::View& view)
    : placement_(placement), mesh_(mesh), view_(view) {
  for (const Axis axis : view.axes) {
    const mesh::View alone{view.fold, axis};
    if (const int degree = mesh.degree(alone); degree > 1) add(mesh.member(0, alone, 1), degree);
  }
  std::sort(digits_.begin(), digits_.end(), [](const DeviceDigit& a, const DeviceDigit& b) { return a.stride < b.stride; });
  std::vector<DeviceDigit> merged;
  for (const DeviceDigit& digit : digits_) {
    if (!merged.empty() && merged.back().stride * merged.back().degree == digit.stride)
      merged.back().degree *= digit.degree;
    else
      merged.push_back(digit);
  }
  digits_ = std::move(merged);
}

// A digit of ranks becomes one of devices, or two: stages stand between cp x tp and the replicas where pipelines stand side by side.
void DeviceDigits::add(int64_t stride, int64_t degree) {
  const int64_t inner = mesh_.degree(Axis::kCp | Axis::kTp), stages = mesh_.degree(Axis::kPp), of_stage = mesh_.world_size() / stages;
  const int64_t span = stride * degree;
  if (placement_.order() == Order::kUsual || inner % span == 0) {
    digits_.push_back({stride, degree});
  } else if (stride >= of_stage) {
    digits_.push_back({inner, degree});
  } else if (stride % inner == 0) {
    digits_.push_back({stride * stages, degree});
  } else if (inner % stride == 0 && span % inner == 0) {
    digits_.push_back({stride, inner / stride});
    digits_.push_back({inner * stages, span / inner});
  } else {
    regular_ = false;
  }
}

Spread DeviceDigits::spread(int first, int64_t unit) const {
  // Members at least a unit apart: each has one of its own.
  if (regular_ && !digits_.empty() && digits_.front().stride >= unit)
    return {.units = mesh_.degree(view_), .most = 1, .where = placement_.device_of(first) / unit};
  if (regular_)
    if (const auto found = by_digits(placement_.device_of(first), unit)) return *found;
  return by_members(first, unit);
}

// Each digit moves inside a unit, or from unit to unit, or is cut between the two; the largest may also end in the middle of one.
std::optional<Spread> DeviceDigits::by_digits(int64_t device, int64_t unit) const {
  Spread found{.where = device / unit};
  for (size_t i = 0; i < digits_.size(); ++i) {
    const auto [stride, degree] = digits_[i];
    if (unit % (stride * degree) == 0) {
      found.most *= degree;
    } else if (stride % unit == 0) {
      found.units *= degree;
    } else if (unit % stride == 0 && stride * degree % unit == 0) {
      found.most *= unit / stride;
      found.units *= stride * degree / unit;
    } else if (unit % stride == 0 && i + 1 == digits_.size()) {
      const int64_t whole = unit / stride, begin = device % unit / stride, end = begin + degree;  // in blocks of `stride` devices
      const int64_t units = (end - 1) / whole + 1, head = std::min(whole, end) - begin, tail = units > 1 ? (end - 1) % whole + 1 : 0;
      const int64_t most = std::max({head, units > 2 ? whole : 0, tail});
      found.where += most == head ? 0 : units > 2 ? 1 : units - 1;
      found.most *= most;
      found.units *= units;
    } else {
      return std::nullopt;
    }
  }
  return found;
}

Spread DeviceDigits::by_members(int first, int64_t unit) const {
  std::vector<int64_t> units;
  for (const int rank : mesh_.group(first, view_)) units.push_back(placement_.device_of(rank) / unit);
  std::sort(units.begin(), units.end());
  Spread found{.units = 0, .most = 0};
  for (size_t begin = 0, end = 0; begin < units.size(); begin = end) {
    while (end < units.size() && units[end] == units[begin]) ++end;
    ++found.units;
    if (static_cast<int64_t>(end - begin) > found.most) {
      found.most = static_cast<int64_t>(end - begin);
      found.where = units[begin];
    }
  }
  return found;
}

}  // namespace lockstep::plan
