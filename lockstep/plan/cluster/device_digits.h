// The devices of a group as digits: first + the sum of digit x stride. What a group touches is counted from them, not from its ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/plan/cluster/placement.h"

namespace lockstep::plan {

struct DeviceDigit {
  int64_t stride = 1;  // devices
  int64_t degree = 1;
};

// How a group spreads over units of equal many devices (domains, nodes, leaves).
struct Spread {
  int64_t units = 1;  // that it touches
  int64_t most = 1;   // of its members in one
  int64_t where = 0;  // such a unit
};

// Of the groups of a view on a placement; all groups of it have the same digits.
class DeviceDigits {
 public:
  DeviceDigits(const Placement& placement, const mesh::Mesh& mesh, const mesh::View& view);
  // Of the group whose first member is `first`.
  Spread spread(int first, int64_t unit) const;

 private:
  void add(int64_t stride, int64_t degree);
  std::optional<Spread> by_digits(int64_t device, int64_t unit) const;
  Spread by_members(int first, int64_t unit) const;

  const Placement& placement_;
  const mesh::Mesh& mesh_;
  const mesh::View& view_;
  std::vector<DeviceDigit> digits_{};  // by stride, neighbours merged
  bool regular_ = true;                // the digits say all
};

}  // namespace lockstep::plan
