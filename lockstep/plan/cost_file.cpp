#include "lockstep/plan/cost_file.h"

#include <cmath>
#include <map>
#include <toml++/toml.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

class Reader {
 public:
  Reader(std::string_view origin, const program::Layout& layout) : origin_(origin), layout_(layout) {}

  StepCosts read(const toml::table& root) {
    StepCosts costs;
    costs.source = std::string(origin_);
    const std::map<std::string, std::map<std::string, double*>> numbers = {
        {"transfer", link(costs.transfer)},
        {"collective", link(costs.collective)},
        {"copy", link(costs.copy)},
        {"update", {{"norm", &costs.norm}, {"step", &costs.step}}}};
    const std::map<std::string, WorkCost*> works = {
        {"forward", &costs.forward}, {"input", &costs.input}, {"weight", &costs.weight}, {"recompute", &costs.recompute}};
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      const toml::table* table = node.as_table();
      const auto work = works.find(name);
      const auto other = numbers.find(name);
      if (!table || (work == works.end() && other == numbers.end())) {
        refuse(cat("'", name, "' is no table of a cost file"), key.source(),
               "the tables are forward, input, weight, recompute, transfer, collective, copy, update");
      }
      if (work != works.end())
        read_work(name, *table, *work->second);
      else
        for (const auto& [inner, value] : *table) *field(name, inner, other->second) = number(name, inner, value);
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
  static std::map<std::string, double*> link(LinkCost& cost) {
    return {{"bandwidth", &cost.bandwidth}, {"latency", &cost.latency}};
  }

  void read_work(const std::string& name, const toml::table& table, WorkCost& work) {
    const std::map<std::string, double*> kinds = {
        {"embedding", &work.embedding}, {"block", &work.block}, {"head", &work.head}};
    for (const auto& [key, value] : table) {
      if (key.str() == "layers")
        work.layers = list(name, key, value, layout_.num_layers());
      else if (key.str() == "stages")
        work.stages = list(name, key, value, layout_.pipeline.stages());
      else
        *field(name, key, kinds, ", layers, stages") = number(name, key, value);
    }
    const int ways = !work.layers.empty() + !work.stages.empty();
    if (ways > 1 || (ways == 1 && table.size() > 1))
      refuse(cat("[", name, "] says its costs in several ways"), table.source(),
             "by layers, or by stages, or by embedding, block and head");
  }

  double* field(const std::string& table, const toml::key& key, const std::map<std::string, double*>& fields,
                const char* more = "") const {
    const auto found = fields.find(std::string(key.str()));
    if (found != fields.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, value] : fields) names.push_back(name);
    refuse(cat("unknown key '", table, ".", key.str(), "'"), key.source(), cat("the keys are ", join(names, ", "), more));
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

double WorkCost::of_stage(const program::Layout& layout, int stage) const {
  if (!stages.empty()) return stages.at(static_cast<size_t>(stage));
  const auto [begin, end] = layout.stage_layers(stage);
  double sum = 0;
  for (int layer = begin; layer < end; ++layer) sum += of(layout, layer);
  return sum;
}

double LinkCost::seconds(double bytes, double messages) const {
  return messages * latency + (bandwidth > 0 ? bytes / bandwidth : 0);
}

StepCosts parse_costs(std::string_view text, std::string_view origin, const program::Layout& layout) {
  Reader reader(origin, layout);
  try {
    return reader.read(toml::parse(text, origin));
  } catch (const toml::parse_error& error) {
    reader.refuse(std::string(error.description()), error.source(), "a cost file is TOML; lockstep/plan/cost_file.h lists its keys");
  }
}

StepCosts read_costs(const std::filesystem::path& path, const program::Layout& layout) {
  return parse_costs(read_file(path), path.string(), layout);
}

}  // namespace lockstep::plan
