#include "lockstep/plan/evidence/run_cluster.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

// Numbers and words, in order, without what separates them: "25 GB/s/GPU" is 25, GB/s/GPU.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const bool belongs = std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '.' || c == '-';
    if (belongs) words.back() += c;
    if (!belongs && !words.back().empty()) words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// Clauses end at a semicolon, or at a slash between blanks.
std::vector<std::string> clauses_of(std::string_view text) {
  std::vector<std::string> clauses(1);
  for (size_t i = 0; i < text.size(); ++i) {
    const bool slash = text[i] == '/' && i > 0 && text[i - 1] == ' ' && i + 1 < text.size() && text[i + 1] == ' ';
    if (text[i] == ';' || slash)
      clauses.emplace_back();
    else
      clauses.back() += text[i];
  }
  return clauses;
}

std::string before_dash(std::string_view name) { return lower(name.substr(0, name.find('-'))); }

// "H100", as devices are called in words: the part of a known name before its first dash.
bool names_a_device(const std::string& word) {
  return std::ranges::any_of(device_rows(), [&](const DeviceRow& row) { return before_dash(row.kind.name) == lower(word); });
}

bool is_of(const std::vector<std::string>& words, std::string_view device) {
  bool names_any = false;
  for (const std::string& word : words) {
    if (!names_a_device(word)) continue;
    names_any = true;
    if (lower(word) == before_dash(device)) return true;
  }
  return !names_any;
}

// What stands before the first unit; bytes per device count before bits.
double rate_of(const std::vector<std::string>& words) {
  for (const bool bytes : {true, false})
    for (size_t i = 1; i < words.size(); ++i) {
      if (!words[i].starts_with(bytes ? "GB/s" : "Gb/s")) continue;
      if (const std::optional<double> rate = parse_number<double>(words[i - 1])) return *rate * (bytes ? 1e9 : 1e9 / 8);
    }
  return 0;
}

}  // namespace

double nic_in_words(std::string_view words, std::string_view device) {
  for (const std::string& clause : clauses_of(words)) {
    const std::vector<std::string> said = words_of(clause);
    const double rate = rate_of(said);
    if (rate > 0 && is_of(said, device)) return rate;
  }
  return 0;
}

Cluster cluster_of(const PublishedRun& run, const RunSource& source) {
  const DeviceRow& row = device_row(run.device);
  if (run.gpus < 1) throw ConfigError({.code = "LS1146", .what = "n_gpus is not printed", .way_out = "it cannot be predicted from what is printed"});
  const int of_node = source.gpus_per_node.value_or(0) > 0 ? *source.gpus_per_node : row.node.devices;
  Cluster cluster = usual_cluster(row, (run.gpus - 1) / of_node + 1, of_node);
  if (const double nic = nic_in_words(source.network, run.device); nic > 0) {
    cluster.network.nic = nic;
    cluster.network.efficiency = payload_share(nic);
  }
  if (lower(source.network).find("roce") != std::string::npos) {
    cluster.network.latency_leaf = kRoceLeaf;
    cluster.network.latency_spine = kRoceSpine;
  }
  cluster.origin = cat("published run ", run.id);
  if (const auto problem = problem_of(cluster))
    throw ConfigError({.code = "LS1146", .what = problem->what, .way_out = "it cannot be predicted from what is printed"});
  return cluster;
}

}  // namespace lockstep::plan
