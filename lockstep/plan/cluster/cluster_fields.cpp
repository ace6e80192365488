#include "lockstep/plan/cluster/cluster_fields.h"

#include <array>
#include <cmath>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::plan {
namespace {

constexpr std::array<std::pair<Generation, std::string_view>, 7> kGenerations = {{{Generation::kCpu, "cpu"},
                                                                                  {Generation::kVolta, "volta"},
                                                                                  {Generation::kAmpere, "ampere"},
                                                                                  {Generation::kHopper, "hopper"},
                                                                                  {Generation::kBlackwell, "blackwell"},
                                                                                  {Generation::kCdna, "cdna"},
                                                                                  {Generation::kOther, "other"}}};

struct Scale {
  std::string_view name{};
  double factor = 1;
};
// The first is the one that is written.
std::vector<Scale> scales(Quantity quantity) {
  switch (quantity) {
    case Quantity::kBytesPerSecond:
      return {{"GB/s", 1e9}, {"Gb/s", 1e9 / 8}, {"TB/s", 1e12}, {"MB/s", 1e6}, {"Tb/s", 1e12 / 8}, {"B/s", 1}};
    case Quantity::kFlops:
      return {{"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"GFLOP/s", 1e9}};
    case Quantity::kSeconds:
      return {{"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}, {"s", 1}};
    default:
      return {};
  }
}

using Slot = std::variant<double*, int*, bool*, std::string*, Generation*>;
constexpr double kMostCount = kGiB;  // of whole numbers

}  // namespace

const std::vector<ClusterField>& cluster_fields() {
  using enum Quantity;
  static const std::vector<ClusterField> fields = {
      {"", "name", [](Cluster& c) -> Slot { return &c.name; }, kPlain, 0, 0, "what pages call it"},
      {"", "nodes", [](Cluster& c) -> Slot { return &c.nodes; }, kPlain, 1, kMostCount, ""},
      {"", "devices_per_node", [](Cluster& c) -> Slot { return &c.devices_per_node; }, kPlain, 1, kMostCount, ""},
      {"", "domain", [](Cluster& c) -> Slot { return &c.domain; }, kPlain, 1, kMostCount, "devices that reach each other by device.link"},
      {"", "nics_per_node", [](Cluster& c) -> Slot { return &c.nics_per_node; }, kPlain, 1, kMostCount, ""},
      {"", "host_memory", [](Cluster& c) -> Slot { return &c.host_memory; }, kBytes, 0, 1e18, "of a node"},
      {"", "disk_bandwidth", [](Cluster& c) -> Slot { return &c.disk_bandwidth; }, kBytesPerSecond, 0, 1e18, "of a node"},
      {"", "price", [](Cluster& c) -> Slot { return &c.price; }, kPlain, 0, 1e9, "of a device and hour"},
      {"", "failures", [](Cluster& c) -> Slot { return &c.failures; }, kPlain, 0, 1e3, "of a node and hour"},
      {"device", "name", [](Cluster& c) -> Slot { return &c.device.name; }, kPlain, 0, 0, ""},
      {"device", "generation", [](Cluster& c) -> Slot { return &c.device.generation; }, kPlain, 0, 0, ""},
      {"device", "memory", [](Cluster& c) -> Slot { return &c.device.memory; }, kBytes, 1, 1e18, ""},
      {"device", "memory_bandwidth", [](Cluster& c) -> Slot { return &c.device.memory_bandwidth; }, kBytesPerSecond, 1, 1e18, ""},
      {"device", "flops_fp32", [](Cluster& c) -> Slot { return &c.device.flops_fp32; }, kFlops, 0, 1e21, ""},
      {"device", "flops_bf16", [](Cluster& c) -> Slot { return &c.device.flops_bf16; }, kFlops, 1, 1e21, ""},
      {"device", "flops_fp8", [](Cluster& c) -> Slot { return &c.device.flops_fp8; }, kFlops, 0, 1e21, ""},
      {"device", "best_bf16", [](Cluster& c) -> Slot { return &c.device.best_bf16; }, kPlain, 0, 1, "of flops_bf16: the best product measured"},
      {"device", "best_fp8", [](Cluster& c) -> Slot { return &c.device.best_fp8; }, kPlain, 0, 1, ""},
      {"device", "processors", [](Cluster& c) -> Slot { return &c.device.processors; }, kPlain, 0, kMostCount, "streaming multiprocessors"},
      {"device", "link", [](Cluster& c) -> Slot { return &c.device.link; }, kBytesPerSecond, 0, 1e18, "to all of its domain"},
      {"device", "link_to_one", [](Cluster& c) -> Slot { return &c.device.link_to_one; }, kBytesPerSecond, 0, 1e18, "to one of them"},
      {"device", "link_efficiency", [](Cluster& c) -> Slot { return &c.device.link_efficiency; }, kPlain, 0.01, 1, "of link that a ring gets"},
      {"device", "link_latency", [](Cluster& c) -> Slot { return &c.device.link_latency; }, kSeconds, 0, 1, "0: of its generation"},
      {"device", "pcie", [](Cluster& c) -> Slot { return &c.device.pcie; }, kBytesPerSecond, 0, 1e18, "to the host"},
      {"device", "watts", [](Cluster& c) -> Slot { return &c.device.watts; }, kPlain, 0, 1e6, ""},
      {"device", "origin", [](Cluster& c) -> Slot { return &c.device.origin; }, kPlain, 0, 0, "of the numbers"},
      {"network", "nic", [](Cluster& c) -> Slot { return &c.network.nic; }, kBytesPerSecond, 0, 1e18, "one NIC, one direction"},
      {"network", "efficiency", [](Cluster& c) -> Slot { return &c.network.efficiency; }, kPlain, 0.01, 1, "of it that a payload gets"},
      {"network", "latency_leaf", [](Cluster& c) -> Slot { return &c.network.latency_leaf; }, kSeconds, 0, 1, "between nodes under one leaf"},
      {"network", "latency_spine", [](Cluster& c) -> Slot { return &c.network.latency_spine; }, kSeconds, 0, 1, "between leaves"},
      {"network", "nodes_per_leaf", [](Cluster& c) -> Slot { return &c.network.nodes_per_leaf; }, kPlain, 0, kMostCount, "0: all under one"},
      {"network", "oversubscription", [](Cluster& c) -> Slot { return &c.network.oversubscription; }, kPlain, 1, 1e3,
       "a leaf's NICs over its links to the spines"},
      {"network", "rails", [](Cluster& c) -> Slot { return &c.network.rails; }, kPlain, 0, 0, "NIC i of every node on leaf switch i"},
  };
  return fields;
}

std::optional<double> parse_quantity(std::string_view text, Quantity quantity) {
  if (quantity == Quantity::kBytes) {
    const auto bytes = parse_bytes(text);
    return bytes ? std::optional(static_cast<double>(*bytes)) : std::nullopt;
  }
  for (const Scale& scale : scales(quantity)) {
    if (!text.ends_with(scale.name)) continue;
    std::string_view number = text.substr(0, text.size() - scale.name.size());
    while (number.ends_with(' ')) number.remove_suffix(1);
    const auto value = parse_number<double>(number);
    if (value && std::isfinite(*value)) return *value * scale.factor;
  }
  return std::nullopt;
}

std::string quantity_toml(double value, Quantity quantity) {
  if (value == 0) return "0";
  if (quantity == Quantity::kBytes) {
    const std::string text = cat(number_text(value / static_cast<double>(kGiB)), "GiB");
    return parse_quantity(text, quantity) == value ? cat('"', text, '"') : number_text(value);
  }
  const std::vector<Scale> known = scales(quantity);
  if (known.empty()) return number_text(value);
  const std::string text = cat(number_text(value / known.front().factor), known.front().name);
  return parse_quantity(text, quantity) == value ? cat('"', text, '"') : number_text(value);
}

std::string_view quantity_example(Quantity quantity) {
  switch (quantity) {
    case Quantity::kBytes:
      return "bytes, or text as \"80GiB\"";
    case Quantity::kBytesPerSecond:
      return "bytes per second, or text as \"50GB/s\" or \"400Gb/s\"";
    case Quantity::kFlops:
      return "FLOP/s, or text as \"989TFLOP/s\"";
    case Quantity::kSeconds:
      return "seconds, or text as \"2.8us\"";
    default:
      return "a number";
  }
}

std::string_view generation_name(Generation generation) {
  for (const auto& [value, name] : kGenerations)
    if (value == generation) return name;
  LOCKSTEP_CHECK(false, "generation ", static_cast<int>(generation));
  return "";
}

std::optional<Generation> generation_of(std::string_view name) {
  for (const auto& [value, known] : kGenerations)
    if (known == name) return value;
  return std::nullopt;
}

std::vector<std::string> generation_names() {
  std::vector<std::string> names;
  for (const auto& [value, name] : kGenerations) names.emplace_back(name);
  return names;
}

}  // namespace lockstep::plan
