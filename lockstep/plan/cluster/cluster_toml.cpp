#include <algorithm>
#include <cmath>
#include <map>
#include <toml++/toml.h>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/config/toml_bounds.h"
#include "lockstep/plan/cluster/cluster_fields.h"
#include "lockstep/plan/cluster/cluster_words.h"
#include "lockstep/plan/cluster/usual_cluster.h"

namespace lockstep::plan {
namespace {

class Reader {
 public:
  Reader(std::string_view text, std::string_view origin) : lines_(split(text, '\n')), origin_(origin) {}

  Cluster read(std::string_view text) {
    check_bounds(text);
    toml::table root;
    try {
      root = toml::parse(text, origin_);
    } catch (const toml::parse_error& error) {
      complain(error.source(), "not TOML", std::string(error.description()));
      refuse();
    }
    begin(root);
    read_table("", root);
    refuse();
    check(root.source());
    return cluster_;
  }

 private:
  struct Problem {
    Message message{};
    toml::source_position at{};
  };

  void check_bounds(std::string_view text) {
    const bool long_text = text.size() > config::kMostTomlBytes;
    const auto deep = long_text ? std::nullopt : config::too_deep(text);
    if (!long_text && !deep) return;
    throw ConfigError({.code = "LS1142",
                       .what = long_text ? cat("the file has ", text.size(), " bytes, more than ", config::kMostTomlBytes) : std::string(deep->what),
                       .where = deep ? cat(origin_, ":", deep->line, ":", deep->column) : std::string(origin_)});
  }

  // What the file starts from: another cluster in words, what is usual for its device, or nothing at all.
  void begin(const toml::table& root) {
    const toml::node* like = root.get("like");
    const toml::node_view<const toml::node> kind = root["device"]["kind"];
    try {
      if (like) cluster_ = parse_cluster_words(like->value<std::string>().value_or(""));
    } catch (const ConfigError& error) {
      complain(like->source(), error.message().what, error.message().way_out);
    }
    if (kind) begin_kind(*kind.node(), root, like != nullptr);
    started_ = like || kind;
    base_ = cluster_;
    cluster_.origin = std::string(origin_);
    if (!like) cluster_.name = std::string(origin_);
  }

  void begin_kind(const toml::node& kind, const toml::table& root, bool like) {
    try {
      const DeviceRow& row = device_row(kind.value<std::string>().value_or(""));
      const auto whole = [&](const char* key, int usual) {
        return static_cast<int>(std::clamp<int64_t>(root[key].value<int64_t>().value_or(usual), 1, kMostDevices));
      };
      if (like)
        cluster_.device = row.kind;
      else
        cluster_ = usual_cluster(row, whole("nodes", 1), whole("devices_per_node", row.node.devices));
    } catch (const ConfigError& error) {
      complain(kind.source(), error.message().what, error.message().way_out);
    }
  }

  void read_table(const std::string& name, const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string word(key.str());
      const auto& fields = cluster_fields();
      const auto field = std::find_if(fields.begin(), fields.end(), [&](const ClusterField& one) { return one.table == name && one.name == word; });
      if (field != fields.end()) {
        given_.emplace(field->key(), node.source());
        assign(*field, node);
      } else if (name.empty() && word == "slow") {
        read_slow(key, node);
      } else if (name.empty() && (word == "device" || word == "network") && node.is_table()) {
        read_table(word, *node.as_table());
      } else if (!(name.empty() && word == "like") && !(name == "device" && word == "kind")) {
        unknown(name, key);
      }
    }
  }

  void unknown(const std::string& table, const toml::key& key) {
    std::vector<std::string> names;
    for (const ClusterField& field : cluster_fields())
      if (field.table == table) names.emplace_back(field.name);
    if (table.empty()) names.insert(names.end(), {"like", "device", "network", "slow"});
    if (table == "device") names.emplace_back("kind");
    const std::string near = nearest(key.str(), names);
    complain(key.source(), cat("unknown key '", table.empty() ? "" : table + ".", key.str(), "'"),
             near.empty() ? cat("the keys are ", join(names, ", ")) : cat("did you mean '", near, "'?"));
  }

  void assign(const ClusterField& field, const toml::node& node) {
    std::visit([&](auto* slot) { assign_to(*slot, field, node); }, field.slot(cluster_));
  }
  void wrong(const ClusterField& field, const toml::node& node, const std::string& expected) {
    complain(node.source(), cat(field.key(), " is not ", expected), std::string(field.help));
  }
  void assign_to(double& slot, const ClusterField& field, const toml::node& node) {
    const auto* text = node.as_string();
    const auto value = text ? parse_quantity(text->get(), field.quantity) : node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !std::isfinite(*value)) return wrong(field, node, std::string(quantity_example(field.quantity)));
    if (*value < field.least || *value > field.most)
      return wrong(field, node, cat("between ", number_text(field.least), " and ", number_text(field.most)));
    slot = *value;
  }
  void assign_to(int& slot, const ClusterField& field, const toml::node& node) {
    const auto* value = node.as_integer();
    if (!value || static_cast<double>(value->get()) < field.least || static_cast<double>(value->get()) > field.most)
      return wrong(field, node, cat("a whole number of ", number_text(field.least), " or more"));
    slot = static_cast<int>(value->get());
  }
  void assign_to(bool& slot, const ClusterField& field, const toml::node& node) {
    const auto* value = node.as_boolean();
    if (!value) return wrong(field, node, "true or false");
    slot = value->get();
  }
  void assign_to(std::string& slot, const ClusterField& field, const toml::node& node) {
    const auto* value = node.as_string();
    if (!value) return wrong(field, node, "text");
    slot = value->get();
  }
  void assign_to(Generation& slot, const ClusterField& field, const toml::node& node) {
    const auto* value = node.as_string();
    const auto known = value ? generation_of(value->get()) : std::nullopt;
    if (!known) return wrong(field, node, cat("one of ", join(generation_names(), ", ")));
    slot = *known;
  }

  // [slow.nodes] and [slow.nics]: node = share of full speed.
  void read_slow(const toml::key& key, const toml::node& node) {
    const toml::table* slow = node.as_table();
    if (!slow) return complain(key.source(), "slow is a table", "write [slow.nodes] or [slow.nics] above lines such as 3 = 0.8");
    for (const auto& [what, shares] : *slow) {
      const bool nodes = what.str() == "nodes";
      if ((!nodes && what.str() != "nics") || !shares.is_table()) {
        complain(what.source(), cat("unknown key 'slow.", what.str(), "'"), "the tables are slow.nodes and slow.nics");
        continue;
      }
      for (const auto& [number, share] : *shares.as_table()) {
        const auto at = parse_number<int>(number.str());
        const double value = share.is_number() ? share.value<double>().value_or(0) : 0;
        if (!at || *at < 0 || !(value > 0 && value <= 1))
          complain(number.source(), cat("slow.", what.str(), ".", number.str(), " is no node with its share of full speed"),
                   "write node = share: 3 = 0.8");
        else
          (nodes ? cluster_.slow.nodes : cluster_.slow.nics)[*at] = value;
      }
      given_.emplace("slow", what.source());
    }
  }

  void check(const toml::source_region& whole) {
    started_ ? follow() : require(whole);
    refuse();
    const auto problem = problem_of(cluster_);
    if (!problem) return;
    const auto at = given_.find(problem->key);
    complain(at == given_.end() ? whole : at->second, problem->what, cat("look at ", problem->key));
    refuse();
  }

  bool given(const char* key) const { return given_.contains(key); }

  // What follows from keys that are given, where their own are not.
  void follow() {
    DeviceKind& device = cluster_.device;
    if (given("device.link") && !given("device.link_to_one") && base_.device.link_to_one == base_.device.link) device.link_to_one = device.link;
    if (given("network.nic") && !given("network.efficiency")) cluster_.network.efficiency = payload_share(cluster_.network.nic);
    const int before = base_.devices_per_node, now = cluster_.devices_per_node;
    if (before == now) return;
    if (!given("domain") && base_.domain <= before) cluster_.domain = std::min(base_.domain, now);
    if (!given("nics_per_node") && base_.nics_per_node == before) cluster_.nics_per_node = now;
  }

  // A device of one's own has all that times are made of.
  void require(const toml::source_region& whole) {
    for (const char* key : {"nodes", "devices_per_node", "device.memory", "device.memory_bandwidth", "device.flops_bf16"})
      if (!given(key))
        complain(whole, cat(key, " is not set"), "or begin with like = \"64 nodes of 8xh100\" or device.kind = \"h100\"");
    if (!given("domain")) cluster_.domain = cluster_.device.link > 0 ? cluster_.devices_per_node : 1;
    if (!given("device.link_to_one")) cluster_.device.link_to_one = cluster_.device.link;
    if (given("network.nic") && !given("network.efficiency")) cluster_.network.efficiency = payload_share(cluster_.network.nic);
    if (!given("nics_per_node")) cluster_.nics_per_node = cluster_.devices_per_node;
    if (!given("device.name")) cluster_.device.name = "own device";
    if (!given("device.origin")) cluster_.device.origin = std::string(origin_);
  }

  // The line with a caret below, as lockstep/config shows it.
  void complain(const toml::source_region& region, const std::string& what, const std::string& way_out) {
    const toml::source_position at = region.begin;
    std::string line = at.line >= 1 && at.line <= lines_.size() ? lines_[at.line - 1] : "";
    if (line.ends_with('\r')) line.pop_back();
    std::replace(line.begin(), line.end(), '\t', ' ');
    const bool one_line = region.end.line == at.line && region.end.column > at.column;
    const std::string mark = cat("^", std::string(one_line ? region.end.column - at.column - 1 : 0, '~'), way_out.empty() ? "" : " ", way_out);
    problems_.push_back({{.code = "LS1142",
                          .what = cat(what, "\n", pad_left(cat(at.line), 5), " | ", line, "\n", pad_left("", 5), " | ",
                                      std::string(at.column > 0 ? at.column - 1 : 0, ' '), mark),
                          .where = cat(origin_, ":", at.line, ":", at.column)},
                         at});
  }

  // All problems in one error, in the order of the file.
  void refuse() {
    if (problems_.empty()) return;
    std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
      return std::pair(a.at.line, a.at.column) < std::pair(b.at.line, b.at.column);
    });
    Message all = problems_.front().message;
    for (size_t i = 1; i < problems_.size(); ++i) all.what += cat("\n", ConfigError(problems_[i].message).what());
    throw ConfigError(all);
  }

  std::vector<std::string> lines_;
  std::string_view origin_;
  Cluster cluster_{}, base_{};
  bool started_ = false;
  std::map<std::string, toml::source_region> given_{};
  std::vector<Problem> problems_{};
};

}  // namespace

Cluster parse_cluster_toml(std::string_view text, std::string_view origin) { return Reader(text, origin).read(text); }

std::string cluster_toml(const Cluster& cluster) {
  Cluster copy = cluster;
  std::string text = cat("# ", describe(cluster), "\n"), table;
  for (const ClusterField& field : cluster_fields()) {
    if (field.table != table) text += cat("\n[", table = field.table, "]\n");
    const auto value = field.slot(copy);
    std::string printed;
    if (const auto* number = std::get_if<double*>(&value)) printed = quantity_toml(**number, field.quantity);
    if (const auto* whole = std::get_if<int*>(&value)) printed = cat(**whole);
    if (const auto* flag = std::get_if<bool*>(&value)) printed = **flag ? "true" : "false";
    if (const auto* generation = std::get_if<Generation*>(&value)) printed = cat('"', generation_name(**generation), '"');
    if (const auto* words = std::get_if<std::string*>(&value)) printed = OrderedJson(**words).dump();
    const std::string line = cat(field.name, " = ", printed);
    text += field.help.empty() ? line + "\n" : cat(pad_right(line, 34), "  # ", field.help, "\n");
  }
  const auto shares = [&](const char* name, const std::map<int, double>& of) {
    if (of.empty()) return;
    text += cat("\n[slow.", name, "]  # node = share of full speed\n");
    for (const auto& [node, share] : of) text += cat(node, " = ", number_text(share), "\n");
  };
  shares("nodes", cluster.slow.nodes);
  shares("nics", cluster.slow.nics);
  return text;
}

}  // namespace lockstep::plan
