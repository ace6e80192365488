#include "lockstep/plan/cost_file.h"

#include <cmath>
#include <map>
#include <optional>
#include <toml++/toml.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

// Of a table: where what is said of each key goes.
struct Keys {
  std::map<std::string, double*> numbers{};
  WorkCost* work = nullptr;  // its lists of layers and stages, where it has them
};

class Reader {
 public:
  Reader(std::string_view origin, const program::Layout& layout) : origin_(origin), layout_(layout) {}

  StepCosts read(const toml::table& root) {
    StepCosts costs;
    costs.source = std::string(origin_);
    const auto work = [](WorkCost& cost) {
      return Keys{{{"embedding", &cost.embedding}, {"block", &cost.block}, {"head", &cost.head}}, &cost};
    };
    const auto link = [](LinkCost& cost) { return Keys{{{"bandwidth", &cost.bandwidth}, {"latency", &cost.latency}}, nullptr}; };
    const std::map<std::string, Keys> tables = {
        {"forward", work(costs.forward)},   {"input", work(costs.input)},
        {"weight", work(costs.weight)},     {"recompute", work(costs.recompute)},
        {"transfer", link(costs.transfer)}, {"collective", link(costs.collective)},
        {"copy", link(costs.copy)},         {"update", Keys{{{"norm", &costs.norm}, {"step", &costs.step}}, nullptr}}};
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      const toml::table* table = node.as_table();
      const auto keys = tables.find(name);
      if (!table || keys == tables.end())
        refuse(cat("'", name, "' is no table of a cost file"), key.source(),
               "the tables are forward, input, weight, recompute, transfer, collective, copy, update");
      read_table(name, *table, keys->second);
    }
    return costs;
  }

  [[noreturn]] void refuse(const std::string& what, const toml::source_region& where, const std::string& way_out) const {
    throw ConfigError({.code = "LS1084",
                       .what = what,
                       .where = cat(origin_, ":", where.begin.line, ":", where.begin.column),
                       .way_out = way_out});
  }

 private:
  void read_table(const std::string& name, const toml::table& table, const Keys& keys) {
    for (const auto& [key, value] : table) {
      if (keys.work && key.str() == "layers")
        keys.work->layers = list(name, key, value, layout_.num_layers());
      else if (keys.work && key.str() == "stages")
        keys.work->stages = list(name, key, value, layout_.pipeline.stages());
      else
        *field(name, key, keys) = number(name, key, value);
    }
    if (keys.work && !(keys.work->layers.empty() && keys.work->stages.empty()) && table.size() > 1)
      refuse(cat("[", name, "] says its costs in several ways"), table.source(),
             "by layers, or by stages, or by embedding, block and head");
  }

  double* field(const std::string& table, const toml::key& key, const Keys& keys) const {
    const auto found = keys.numbers.find(std::string(key.str()));
    if (found != keys.numbers.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, value] : keys.numbers) names.push_back(name);
    refuse(cat("unknown key '", table, ".", key.str(), "'"), key.source(),
           cat("the keys are ", join(names, ", "), keys.work ? ", layers, stages" : ""));
  }

  double number(const std::string& table, const toml::key& key, const toml::node& node) const {
    const std::optional<double> value = node.value<double>();
    if (!value || !std::isfinite(*value) || *value < 0)
      refuse(cat(table, ".", key.str(), " is not a number of 0 or more"), node.source(),
             "times are in seconds (1.5e-3), bandwidths in bytes per second (25e9)");
    return *value;
  }

  std::vector<double> list(const std::string& table, const toml::key& key, const toml::node& node, int length) const {
    std::vector<double> values;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& item : *array) values.push_back(number(table, key, item));
    }
    if (static_cast<int>(values.size()) != length)
      refuse(cat(table, ".", key.str(), " has ", values.size(), " numbers, and the layout has ", length, " ", key.str()),
             node.source(), cat("a list of ", length, " times in seconds"));
    return values;
  }

  std::string_view origin_;
  const program::Layout& layout_;
};

}  // namespace

double WorkCost::of(const program::Layout& layout, int layer) const {
  if (!layers.empty()) return layers.at(static_cast<size_t>(layer));
  if (!stages.empty()) {
    const int stage = layout.pipeline.stage_of(layer);
    const auto [begin, end] = layout.stage_layers(stage);
    return stages.at(static_cast<size_t>(stage)) / (end - begin);
  }
  return layer == 0 ? embedding : layer == layout.num_layers() - 1 ? head : block;
}

StepCosts parse_costs(std::string_view text, std::string_view origin, const program::Layout& layout) {
  Reader reader(origin, layout);
  try {
    return reader.read(toml::parse(text, origin));
  } catch (const toml::parse_error& error) {
    reader.refuse(std::string(error.description()), error.source(), "a cost file is TOML; lockstep/plan/cost_file.h lists its keys");
  }
}

}  // namespace lockstep::plan
