#include "lockstep/plan/cluster/cluster_words.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/cluster_head.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

constexpr double kMostNumber = 1e6;
constexpr const char* kWords =
    "leaf-spine, rails, 400G (a NIC), 8 NICs, 2:1 (oversubscription), 32 nodes a leaf, 64 devices a domain, InfiniBand, RoCE, $2.5/h";

std::vector<std::string> words_of(std::string_view text) {
  std::string plain(text);
  for (size_t at; (at = plain.find("\u00d7")) != std::string::npos;) plain.replace(at, 2, "x");
  std::istringstream stream{plain};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool is_one_of(const std::string& word, std::initializer_list<std::string_view> words) { return std::ranges::find(words, word) != words.end(); }

// "400G", "400Gb/s" and "50GB/s" as bytes/s: a capital B is a byte.
std::optional<double> rate_of(const std::string& word) {
  const std::string plain = lower(word);
  for (const std::string_view unit : {"gb/s", "gbit/s", "gbps", "gbit", "g"}) {
    if (!plain.ends_with(unit)) continue;
    const auto number = parse_number<double>(plain.substr(0, plain.size() - unit.size()));
    if (!number || !(*number > 0 && *number < kMostNumber)) return std::nullopt;
    return *number * (word.ends_with("GB/s") ? 1e9 : 1e9 / 8);
  }
  return std::nullopt;
}

// "$2.5/h" and "2.5$/hour".
std::optional<double> price_of(const std::string& word) {
  const size_t slash = std::min(word.find('/'), word.size());
  std::string money = word.substr(0, slash);
  if (slash < word.size() && !is_one_of(word.substr(slash), {"/h", "/hr", "/hour", "/gpu-hour", "/gpu/h", "/gpu/hour"})) return std::nullopt;
  if (!money.starts_with('$') && !money.ends_with('$')) return std::nullopt;
  money.erase(money.find('$'), 1);
  const auto number = parse_number<double>(money);
  return number && *number >= 0 && *number < kMostNumber ? number : std::nullopt;
}

// The words behind the devices, one after the other.
class Words {
 public:
  explicit Words(Cluster& cluster) : cluster_(cluster) {}

  void read(const std::vector<std::string>& words) {
    words_ = words;
    for (at_ = 0; at_ < words_.size();) read_one();
  }

  void finish() {
    if (cluster_.nodes == 1 && !network_word_.empty())
      refuse_words(cat("'", network_word_, "' is about a network, and one node has none"),
                   cat("say how many nodes: '4 nodes of ", cluster_.devices_per_node, "x...'"));
    if (!ratio_word_.empty() && !said_.contains("oversubscription"))
      refuse_words(cat("'", ratio_word_, "' without a ratio"), "write 2:1 where a leaf's NICs have twice the bandwidth of its links to the spines");
    if (!leaves_ || cluster_.network.nodes_per_leaf > 0) return;
    const int rack = std::max(1, cluster_.domain / cluster_.devices_per_node);  // which stands under one leaf
    cluster_.network.nodes_per_leaf = std::max(1, kUsualNodesPerLeaf / rack) * rack;
  }

 private:
  std::string next(size_t ahead = 0) const { return at_ + ahead < words_.size() ? lower(words_[at_ + ahead]) : ""; }

  void read_one() {
    const std::string word = words_[at_++], plain = lower(word);
    if (is_one_of(plain, {"of", "with", "and", "network"})) return;  // what they join says it
    if (switches(plain) || kind(plain) || nic(word) || ratio(plain) || price(plain) || count(plain)) return;
    const std::string near = nearest(plain, {"leaf-spine", "rails", "rail-optimised", "infiniband", "roce", "non-blocking", "oversubscription"});
    refuse_words(cat("'", word, "' is no word of a cluster"),
                 cat(near.empty() ? "" : cat("did you mean '", near, "'? "), "known are ", kWords, "; a cluster file says all else"));
  }

  void once(const std::string& what, const std::string& word) {
    const auto [before, first] = said_.try_emplace(what, word);
    if (!first) refuse_words(cat("'", word, "' says ", what, " a second time, after '", before->second, "'"), "leave one of them out");
  }
  void network(const std::string& what, const std::string& word) {
    once(what, word);
    if (network_word_.empty()) network_word_ = word;
  }
  // The second of two words that belong together.
  bool takes(std::string_view second) {
    if (next() != second) return false;
    ++at_;
    return true;
  }

  bool switches(const std::string& word) {
    if (is_one_of(word, {"leaf-spine", "leaf/spine", "fat-tree"}) || (word == "leaf" && takes("spine")) || (word == "fat" && takes("tree"))) {
      network("the switches", word);
      leaves_ = true;
    } else if (is_one_of(word, {"rails", "rail", "rail-optimised", "rail-optimized"})) {
      network("rails", word);
      cluster_.network.rails = leaves_ = true;
    } else if (is_one_of(word, {"non-blocking", "nonblocking", "full-bisection"}) || (word == "full" && takes("bisection"))) {
      network("oversubscription", word);
      cluster_.network.oversubscription = 1;
    } else {
      return false;
    }
    return true;
  }

  bool kind(const std::string& word) {
    Network& network_of = cluster_.network;
    for (const auto& [name, rate] : {std::pair{"hdr", "200G"}, {"ndr", "400G"}, {"xdr", "800G"}})  // generations of InfiniBand
      if (word == name) return nic(rate) && kind("infiniband");
    if (is_one_of(word, {"roce", "ethernet"})) {
      network_of.latency_leaf = kRoceLeaf;
      network_of.latency_spine = kRoceSpine;
    } else if (is_one_of(word, {"infiniband", "ib"})) {
      network_of.latency_leaf = Network{}.latency_leaf;
      network_of.latency_spine = Network{}.latency_spine;
    } else {
      return false;
    }
    network("the kind of network", word);
    return true;
  }

  bool nic(const std::string& word) {
    auto rate = rate_of(word);
    if (!rate && rate_of(cat("1", next().empty() ? "" : words_[at_])) && (rate = rate_of(cat(word, words_[at_])))) ++at_;  // "400 Gb/s"
    if (!rate) return nics(word);
    network("the bandwidth of a NIC", word);
    cluster_.network.nic = *rate;
    cluster_.network.efficiency = payload_share(*rate);
    return true;
  }

  // "8x400G".
  bool nics(const std::string& word) {
    const size_t times = std::min(word.find('x'), word.size());
    const auto number = parse_number<int>(word.substr(0, times));
    if (times == word.size() || !number || *number < 1 || !rate_of(word.substr(times + 1))) return false;
    network("how many NICs a node has", word);
    cluster_.nics_per_node = *number;
    return nic(word.substr(times + 1));
  }

  bool ratio(const std::string& word) {
    if (is_one_of(word, {"oversubscription", "oversubscribed"})) {
      ratio_word_ = word;
      return true;
    }
    const size_t colon = word.find(':');
    if (colon == std::string::npos) return false;
    const auto down = parse_number<double>(word.substr(0, colon)), up = parse_number<double>(word.substr(colon + 1));
    if (!down || !up || !(*down >= *up && *up > 0 && *down < kMostNumber))
      refuse_words(cat("'", word, "' is no oversubscription"), "write 2:1 where a leaf's NICs have twice the bandwidth of its links to the spines");
    network("oversubscription", word);
    cluster_.network.oversubscription = *down / *up;
    leaves_ = true;
    return true;
  }

  bool price(const std::string& word) {
    const auto money = price_of(word);
    const bool apart = is_one_of(next(), {"per", "a", "an"}) && is_one_of(next(1), {"h", "hour", "gpu-hour"});
    if (!money || (word.find('/') == std::string::npos) != apart) return false;
    if (apart) at_ += 2;
    once("the price", word);
    cluster_.price = *money;
    return true;
  }

  // "8 NICs", "32 nodes a leaf", "64 devices a domain".
  bool count(const std::string& word) {
    const auto number = parse_number<int>(word);
    if (!number || *number < 1 || next().empty()) return false;
    const std::string unit = next(), said = cat(word, " ", unit);
    const std::string whole = is_one_of(next(1), {"a", "per"}) ? next(2) : "";
    if (unit == "nics" || unit == "nic") {
      network("how many NICs a node has", said);
      cluster_.nics_per_node = *number;
      at_ += is_one_of(whole, {"node"}) ? 3 : 1;
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
  std::string ratio_word_{};    // oversubscription, which a ratio says
  bool leaves_ = false;
};

}  // namespace

Cluster parse_cluster_words(std::string_view text) {
  const std::vector<std::string> parts = split(text, ',');
  ClusterHead head = read_cluster_head(words_of(parts.front()));
  Cluster cluster = std::move(head.cluster);
  if (!preset(text)) {  // what a preset says of its numbers stays said
    cluster.name = std::string(text);
    cluster.origin = cat("words", cluster.origin.empty() ? "" : "; ", cluster.origin);
  }
  Words words(cluster);
  words.read(head.rest);
  for (size_t i = 1; i < parts.size(); ++i) words.read(words_of(parts[i]));
  words.finish();
  if (const auto problem = problem_of(cluster)) refuse_words(problem->what, cat("in '", text, "'"));
  return cluster;
}

}  // namespace lockstep::plan
