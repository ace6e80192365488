#include "lockstep/plan/cluster/cluster_words.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

constexpr double kMostNumber = 1e6;
constexpr const char* kWords =
    "leaf-spine, rails, 400G (a NIC), 8 NICs, 2:1 (oversubscription), 32 nodes a leaf, 64 devices a domain, InfiniBand, RoCE, $2.5/h";
constexpr const char* kExamples = "write 8xh100, '64 nodes of 8xh200, leaf-spine 400G, 2:1', the name of a preset or of a .toml file";

[[noreturn]] void refuse(const std::string& what, const std::string& way_out) {
  throw ConfigError({.code = "LS1141", .what = what, .way_out = way_out});
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// "8xh100" with its count taken off; nothing where it does not begin so.
struct Counted {
  int count = 0;
  std::string rest{};
};
std::optional<Counted> counted(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits == text.size() || text[digits] != 'x') return std::nullopt;
  const auto count = parse_number<int>(text.substr(0, digits));
  if (!count || *count < 1) return std::nullopt;
  return Counted{*count, text.substr(digits + 1)};
}

[[noreturn]] void refuse_head(const std::string& head) {
  const std::string near = nearest(head, cluster_presets());
  refuse(cat("'", head, "' is no cluster"),
         cat(near.empty() ? "" : cat("did you mean '", near, "'? "), kExamples, "; presets are ", join(cluster_presets(), ", ")));
}

// "8xh100", "512xh100": as many nodes as are usual for so many devices.
Cluster devices_alone(const Counted& devices) {
  const DeviceRow& row = device_row(devices.rest);
  const int usual = row.node.devices;
  if (devices.count <= usual) return usual_cluster(row, 1, devices.count);
  if (devices.count % usual != 0)
    refuse(cat(devices.count, " x ", row.kind.name, " are no whole nodes of ", usual),
           cat("say which nodes: '2 nodes of ", usual, "x", devices.rest, "'"));
  return usual_cluster(row, devices.count / usual, usual);
}

Cluster nodes_of(int nodes, const std::string& rest) {
  if (auto known = preset(rest)) {
    known->nodes = nodes;
    return *known;
  }
  const auto devices = counted(rest);
  if (!devices) refuse_head(rest);
  return usual_cluster(device_row(devices->rest), nodes, devices->count);
}

// What stands before the first comma.
Cluster head_of(const std::string& text) {
  const std::vector<std::string> words = words_of(lower(text));
  if (words.size() > 3 && (words[1] == "nodes" || words[1] == "node") && words[2] == "of") {
    const auto nodes = parse_number<int>(words[0]);
    if (!nodes || *nodes < 1) refuse(cat("'", words[0], "' is no number of nodes"), kExamples);
    return nodes_of(*nodes, join({words.begin() + 3, words.end()}, ""));
  }
  const std::string all = join(words, "");
  if (const auto known = preset(all)) return *known;
  const auto devices = counted(all);
  if (!devices) refuse_head(join(words, " "));
  return devices_alone(*devices);
}

// The words behind the first comma, one after the other.
class Words {
 public:
  explicit Words(Cluster& cluster) : cluster_(cluster) {}

  void read(const std::string& part) {
    words_ = words_of(lower(part));
    for (at_ = 0; at_ < words_.size();) read_one();
  }

  void finish() {
    if (cluster_.nodes == 1 && !network_word_.empty())
      refuse(cat("'", network_word_, "' is about a network, and one node has none"),
             cat("say how many nodes: '4 nodes of ", cluster_.devices_per_node, "x...'"));
    if (leaves_ && cluster_.network.nodes_per_leaf == 0) cluster_.network.nodes_per_leaf = kUsualNodesPerLeaf;
  }

 private:
  void read_one() {
    const std::string word = words_[at_++];
    if (plain(word) || nic(word) || ratio(word) || price(word) || count(word)) return;
    const std::string near = nearest(word, {"leaf-spine", "rails", "infiniband", "roce"});
    refuse(cat("'", word, "' is no word of a cluster"), cat(near.empty() ? "" : cat("did you mean '", near, "'? "), "known are ", kWords));
  }

  void once(const std::string& what, const std::string& word) {
    const auto [before, first] = said_.try_emplace(what, word);
    if (!first) refuse(cat("'", word, "' says ", what, " a second time, after '", before->second, "'"), "leave one of them out");
  }
  void network(const std::string& what, const std::string& word) {
    once(what, word);
    if (network_word_.empty()) network_word_ = word;
  }

  bool plain(const std::string& word) {
    Network& network_of = cluster_.network;
    if (word == "leaf-spine") {
      network("the switches", word);
      leaves_ = true;
    } else if (word == "rails" || word == "rail") {
      network("rails", word);
      network_of.rails = leaves_ = true;
    } else if (word == "roce") {
      network("the kind of network", word);
      network_of.latency_leaf = kRoceLeaf;
      network_of.latency_spine = kRoceSpine;
    } else if (word == "infiniband" || word == "ib") {
      network("the kind of network", word);
      network_of.latency_leaf = Network{}.latency_leaf;
      network_of.latency_spine = Network{}.latency_spine;
    } else {
      return false;
    }
    return true;
  }

  bool nic(const std::string& word) {
    if (!word.ends_with('g')) return false;
    const auto gigabits = parse_number<double>(word.substr(0, word.size() - 1));
    if (!gigabits || !(*gigabits > 0 && *gigabits < kMostNumber)) return false;
    network("the bandwidth of a NIC", word);
    cluster_.network.nic = *gigabits * 1e9 / 8;
    cluster_.network.efficiency = payload_share(cluster_.network.nic);
    return true;
  }

  bool ratio(const std::string& word) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos) return false;
    const auto down = parse_number<double>(word.substr(0, colon)), up = parse_number<double>(word.substr(colon + 1));
    if (!down || !up || !(*down >= *up && *up > 0 && *down < kMostNumber))
      refuse(cat("'", word, "' is no oversubscription"), "write 2:1 where a leaf's NICs have twice the bandwidth of its links to the spines");
    network("oversubscription", word);
    cluster_.network.oversubscription = *down / *up;
    leaves_ = true;
    return true;
  }

  bool price(const std::string& word) {
    if (!word.starts_with('$') || !word.ends_with("/h")) return false;
    const auto money = parse_number<double>(word.substr(1, word.size() - 3));
    if (!money || !(*money >= 0 && *money < kMostNumber)) return false;
    once("the price", word);
    cluster_.price = *money;
    return true;
  }

  // "8 NICs", "32 nodes a leaf", "64 devices a domain".
  bool count(const std::string& word) {
    const auto number = parse_number<int>(word);
    if (!number || *number < 1 || at_ == words_.size()) return false;
    const std::string unit = words_[at_], said = cat(word, " ", unit);
    const bool of = at_ + 2 < words_.size() && (words_[at_ + 1] == "a" || words_[at_ + 1] == "per");
    const std::string whole = of ? words_[at_ + 2] : "";
    if (unit == "nics" || unit == "nic") {
      network("how many NICs a node has", said);
      cluster_.nics_per_node = *number;
      at_ += 1;
    } else if ((unit == "nodes" || unit == "node") && whole == "leaf") {
      network("how many nodes a leaf has", said);
      cluster_.network.nodes_per_leaf = *number;
      at_ += 3;
    } else if ((unit == "devices" || unit == "gpus") && whole == "domain") {
      once("how many devices a domain has", said);
      cluster_.domain = *number;
      at_ += 3;
    } else {
      return false;
    }
    return true;
  }

  Cluster& cluster_;
  std::vector<std::string> words_{};
  size_t at_ = 0;
  std::map<std::string, std::string> said_{};
  std::string network_word_{};  // the first
  bool leaves_ = false;
};

}  // namespace

Cluster parse_cluster_words(std::string_view text) {
  const std::vector<std::string> parts = split(text, ',');
  Cluster cluster = head_of(parts.front());
  if (!preset(text)) {  // what a preset says of its numbers stays said
    cluster.name = std::string(text);
    cluster.origin = cat("words", cluster.origin.empty() ? "" : "; ", cluster.origin);
  }
  Words words(cluster);
  for (size_t i = 1; i < parts.size(); ++i) words.read(parts[i]);
  words.finish();
  if (const auto problem = problem_of(cluster)) refuse(problem->what, cat("in '", text, "'"));
  return cluster;
}

}  // namespace lockstep::plan
