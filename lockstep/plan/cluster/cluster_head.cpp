#include "lockstep/plan/cluster/cluster_head.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kExamples = "write 8xh100, '64 nodes of 8xh200, leaf-spine 400G, 2:1', the name of a preset or of a .toml file";

[[noreturn]] void refuse_head(const std::string& head) {
  const std::string near = nearest(lower(head), cluster_presets());
  refuse_words(cat("'", head, "' is no cluster"),
               cat(near.empty() ? "" : cat("did you mean '", near, "'? "), kExamples, "; presets are ", join(cluster_presets(), ", ")));
}

// A number that is written as digits alone; what is too large for one is 0, which no cluster has.
std::optional<int> whole(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return parse_number<int>(text).value_or(0);
}

// "8xh100" is 8 and "h100"; "8h100" and "h100x8" say the same.
struct Counted {
  int count = 0;
  std::string rest{};
};
std::optional<Counted> counted(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits > 0 && digits < text.size()) {
    const bool times = text[digits] == 'x' && digits + 1 < text.size();
    return Counted{*whole(text.substr(0, digits)), text.substr(digits + (times ? 1 : 0))};
  }
  const size_t last = text.rfind('x');
  if (last == std::string::npos || last == 0 || last + 1 == text.size()) return std::nullopt;
  const auto count = whole(text.substr(last + 1));
  return count ? std::optional(Counted{*count, text.substr(0, last)}) : std::nullopt;
}

// The first words as one: "8 x H100 SXM5" is "8xh100-sxm5".
std::string joined(const Words& words, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    const std::string word = lower(words[i]);
    const bool tight = all.empty() || word.starts_with('x') || all.ends_with('x') || whole(all);
    all += (tight ? "" : "-") + word;
  }
  return all;
}

const DeviceRow* device_of(const std::string& text) {
  const DeviceRow* row = known_device(text);
  return !row && text.ends_with('s') ? known_device(text.substr(0, text.size() - 1)) : row;  // "8 H100s"
}

// "gpus" says nothing that the count does not.
std::string without_gpus(std::string text) {
  for (const std::string_view word : {"-gpus", "-gpu"})
    if (text.ends_with(word)) text.erase(text.size() - word.size());
  return text;
}

// "2 nodes of 6" of 12, where a node has at most 8.
std::string parts_of(int count, int most) {
  int each = most;
  while (count % each != 0) --each;
  return cat(count / each, " nodes of ", each);
}

// As many nodes as are usual for so many devices.
Cluster devices_alone(int count, const DeviceRow& row) {
  const int usual = row.node.devices;
  if (count <= usual) return usual_cluster(row, 1, count);
  if (count % usual != 0)
    refuse_words(cat(count, " x ", row.kind.name, " are no whole nodes of ", usual),
                 cat("say which nodes: '", parts_of(count, usual), "x", row.aliases.front(), "'"));
  return usual_cluster(row, count / usual, usual);
}

// `text` of lower case, in as many nodes or racks as `units` says; nothing where it is no cluster.
struct Units {
  std::optional<int> count{};
  bool racks = false;
};
std::optional<Cluster> cluster_in(const std::string& text, const Units& units) {
  auto known = preset(text);
  if (known && !units.count) return known;
  if (units.racks) {
    const DeviceRow* row = device_of(text);
    if (!known && row) known = usual_cluster(*row, 1, row->node.devices);
    if (!known || known->domain <= known->devices_per_node) return std::nullopt;
    known->nodes = std::min(*units.count, kMostDevices / known->domain + 1) * (known->domain / known->devices_per_node);
    return known;
  }
  if (known) {
    known->nodes = *units.count;
    return known;
  }
  const std::string devices_text = without_gpus(text);
  const auto devices = counted(devices_text);
  if (!devices || devices->count < 1) return std::nullopt;
  if (const DeviceRow* row = device_of(devices->rest))
    return units.count ? usual_cluster(*row, *units.count, devices->count) : devices_alone(devices->count, *row);
  if (units.count || !devices_text.starts_with(cat(devices->count))) return std::nullopt;
  return cluster_in(devices->rest, {.count = devices->count});  // "64x8xh100"
}

// Where the words are no cluster: the device that is not known, or all of them.
[[noreturn]] void refuse_all(const Words& words, const Units& units) {
  const auto devices = counted(without_gpus(joined(words, words.size())));
  if (units.racks) refuse_words(cat("'", join(words, " "), "' come in no racks"), "write '2 racks of gb200', or nodes");
  if (words.size() == 1 && devices && devices->count > 0 && devices->rest.size() > 1) device_row(devices->rest);
  refuse_head(join(words, " "));
}

}  // namespace

void refuse_words(const std::string& what, const std::string& way_out) { throw ConfigError({.code = "LS1141", .what = what, .way_out = way_out}); }

ClusterHead read_cluster_head(const Words& words) {
  Units units;
  size_t begin = 0;
  const std::string unit = words.size() > 1 ? lower(words[1]) : "";
  if (unit == "nodes" || unit == "node" || unit == "racks" || unit == "rack") {
    units = {.count = whole(words[0]), .racks = unit.starts_with("rack")};
    if (!units.count || *units.count < 1) refuse_words(cat("'", words[0], "' is no number of ", unit), kExamples);
    begin = 2;
    for (const char* filler : {"of", "with", "x"})
      if (begin < words.size() && lower(words[begin]) == filler) ++begin;
  }
  const Words said(words.begin() + static_cast<std::ptrdiff_t>(begin), words.end());
  for (size_t count = said.size(); count > 0; --count)
    if (auto cluster = cluster_in(joined(said, count), units)) return {std::move(*cluster), {said.begin() + static_cast<std::ptrdiff_t>(count), said.end()}};
  refuse_all(said, units);
}

}  // namespace lockstep::plan
