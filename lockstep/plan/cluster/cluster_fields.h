// The keys of a cluster file, each said once: where its value goes, its unit and its range. The reader and the writer go by them.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

// A number stands in the first unit; text may name another of the list.
enum class Quantity {
  kPlain,
  kBytes,           // "80GiB"
  kBytesPerSecond,  // "400Gb/s", "50GB/s"
  kFlops,           // "989TFLOP/s"
  kSeconds,         // "2.8us"
};

struct ClusterField {
  std::string_view table{};  // "" at the top, "device", "network"
  std::string_view name{};
  std::variant<double*, int*, bool*, std::string*, Generation*> (*slot)(Cluster&) = nullptr;
  Quantity quantity = Quantity::kPlain;
  double least = 0, most = std::numeric_limits<double>::infinity();
  std::string_view help{};
  std::string key() const { return table.empty() ? std::string(name) : std::string(table) + "." + std::string(name); }
};
const std::vector<ClusterField>& cluster_fields();

std::optional<double> parse_quantity(std::string_view text, Quantity quantity);
// As TOML: text with a unit where it reads back as the same number, else the number.
std::string quantity_toml(double value, Quantity quantity);
std::string_view quantity_example(Quantity quantity);

std::string_view generation_name(Generation generation);
std::optional<Generation> generation_of(std::string_view name);
std::vector<std::string> generation_names();

}  // namespace lockstep::plan
