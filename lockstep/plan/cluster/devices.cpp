#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

// "NVIDIA H100 SXM5 80GB" as the table has it: h100-sxm5-80gb.
std::string table_name(std::string_view name) {
  std::string word = lower(name);
  std::replace_if(word.begin(), word.end(), [](char c) { return c == ' ' || c == '_'; }, '-');
  for (const std::string_view maker : {"nvidia-", "amd-", "instinct-", "intel-"})
    if (word.starts_with(maker)) word.erase(0, maker.size());
  return word;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const DeviceRow* known_device(std::string_view name) {
  const std::string word = table_name(name);
  for (const DeviceRow& row : device_rows())
    if (lower(row.kind.name) == word || std::ranges::count(row.aliases, word) > 0) return &row;
  return nullptr;
}

const DeviceRow& device_row(std::string_view name) {
  if (const DeviceRow* row = known_device(name)) return *row;
  const std::string word = table_name(name);
  std::vector<std::string> known, shortest;
  for (const DeviceRow& row : device_rows()) {
    known.push_back(lower(row.kind.name));
    known.insert(known.end(), row.aliases.begin(), row.aliases.end());
    shortest.emplace_back(row.aliases.front());
  }
  const std::string near = nearest(word, known);
  throw ConfigError({.code = "LS1140",
                     .what = cat("no device is called '", name, "'"),
                     .way_out = cat(near.empty() ? "" : cat("did you mean '", near, "'? "), "known are ", join(shortest, ", "),
                                    "; a cluster file describes others")});
}

const DeviceKind& device_kind(std::string_view name) { return device_row(name).kind; }

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceRow& row : device_rows()) names.push_back(row.kind.name);
  return names;
}

}  // namespace lockstep::plan
