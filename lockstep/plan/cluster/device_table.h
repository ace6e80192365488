// The kinds of devices that are known by name, and what a node of each usually is.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

struct UsualNode {
  int devices = 8;
  int domain = 1;           // devices that `link` joins; more than `devices` where it spans nodes
  double nic = 0;           // bytes/s of each device's NIC, one direction
  double host_memory = 0;   // bytes
  double disk_bandwidth = 0;  // bytes/s
};

struct DeviceRow {
  DeviceKind kind{};
  UsualNode node{};
  std::vector<std::string_view> aliases{};  // lower case
};
const std::vector<DeviceRow>& device_rows();

// Nothing where none has that name. Capitals do not matter, nor does the name of who makes it: "NVIDIA H100 SXM5 80GB".
const DeviceRow* known_device(std::string_view name);
// ConfigError LS1140 with the nearest names. Capitals do not matter.
const DeviceRow& device_row(std::string_view name);

}  // namespace lockstep::plan
