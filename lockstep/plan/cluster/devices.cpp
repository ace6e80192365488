#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const DeviceRow& device_row(std::string_view name) {
  const std::string word = lower(name);
  std::vector<std::string> known, shortest;
  for (const DeviceRow& row : device_rows()) {
    if (lower(row.kind.name) == word || std::find(row.aliases.begin(), row.aliases.end(), word) != row.aliases.end()) return row;
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
