#include "lockstep/plan/stack_toml.h"

#include <array>
#include <cmath>
#include <optional>
#include <toml++/toml.h>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/config/toml_bounds.h"

namespace lockstep::plan {
namespace {

constexpr std::array kAllKernels = {Kernels::kUnfused, Kernels::kFlash, Kernels::kCurrent};

class Reader {
 public:
  Reader(std::string_view text, std::string_view origin, const Stack& base) : text_(text), origin_(origin), stack_(base) {}

  Stack read() {
    if (text_.size() > config::kMostTomlBytes) refuse(cat("the file has ", text_.size(), " bytes, more than ", config::kMostTomlBytes), {}, "");
    if (const auto deep = config::too_deep(text_)) refuse(std::string(deep->what), {}, "");
    toml::table root;
    try {
      root = toml::parse(text_, origin_);
    } catch (const toml::parse_error& error) {
      refuse(cat("not TOML: ", error.description()), error.source(), "");
    }
    const toml::table* stack = root["stack"].as_table();
    if (!stack) refuse("no table [stack]", root.source(), "`lockstep plan --calibrate RUN` prints one");
    for (const auto& [key, node] : *stack) read_key(key, node);
    return std::move(stack_);
  }

 private:
  void read_key(const toml::key& key, const toml::node& node) {
    const std::string name(key.str());
    if (name == "name") stack_.name = text_of(name, node);
    else if (name == "kernels") stack_.kernels = kernels(node);
    else if (name == "origins") read_origins(node);
    else number(name, key, node);
  }

  void number(const std::string& name, const toml::key& key, const toml::node& node) {
    double Stack::*field = field_of(name, key);
    const std::optional<double> value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !std::isfinite(*value) || *value < 0) refuse(cat("stack.", name, " is not a number of 0 or more"), node.source(), "");
    stack_.*field = *value;
    if (!said_.contains(name)) stack_.origins[name] = std::string(origin_);
  }

  void read_origins(const toml::node& node) {
    const toml::table* origins = node.as_table();
    if (!origins) refuse("stack.origins is not a table", node.source(), "write [stack.origins] above lines such as product_cap = \"fitted to runs/x\"");
    for (const auto& [key, value] : *origins) {
      const std::string name(key.str());
      field_of(name, key);
      stack_.origins[name] = text_of(cat("origins.", name), value);
      said_[name] = true;
    }
  }

  double Stack::*field_of(const std::string& name, const toml::key& key) const {
    std::vector<std::string> names = {"name", "kernels", "origins"};
    for (const auto& [known, field] : stack_constants()) {
      if (known == name) return field;
      names.push_back(known);
    }
    const std::string near = nearest(name, names);
    refuse(cat("unknown key 'stack.", name, "'"), key.source(), near.empty() ? cat("the keys are ", join(names, ", ")) : cat("did you mean '", near,
                                                                                                                             "'?"));
  }

  std::string text_of(const std::string& name, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    refuse(cat("stack.", name, " is not text"), node.source(), "");
  }

  Kernels kernels(const toml::node& node) const {
    const std::string word = text_of("kernels", node);
    std::vector<std::string> words;
    for (const Kernels one : kAllKernels) {
      if (kernels_name(one) == word) return one;
      words.emplace_back(kernels_name(one));
    }
    refuse(cat("stack.kernels \"", word, "\" is none of ", join(words, ", ")), node.source(), "");
  }

  [[noreturn]] void refuse(const std::string& what, const toml::source_region& where, const std::string& way_out) const {
    const bool known = where.begin.line > 0;
    throw ConfigError({.code = "LS1153",
                       .what = what,
                       .where = known ? cat(origin_, ":", where.begin.line, ":", where.begin.column) : std::string(origin_),
                       .way_out = way_out});
  }

  std::string_view text_, origin_;
  Stack stack_;
  std::map<std::string, bool> said_{};  // whose origin stands in the file
};

// "[stack]", "[stack.origins]".
bool begins_stack(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  line.remove_prefix(begin);
  return line.starts_with("[stack]") || line.starts_with("[stack.");
}
bool begins_host(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  return begin != std::string_view::npos && line.substr(begin).starts_with("[host]");
}
bool begins_table(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  return begin != std::string_view::npos && line[begin] == '[';
}

}  // namespace

std::string stack_toml(const Stack& stack) {
  std::string text = cat("[stack]\nname = ", OrderedJson(stack.name).dump(), "\nkernels = \"", kernels_name(stack.kernels), "\"\n"), origins;
  for (const auto& [name, field] : stack_constants()) {
    text += cat(name, " = ", number_text(stack.*field), "\n");
    if (const auto origin = stack.origins.find(name); origin != stack.origins.end()) origins += cat(name, " = ", OrderedJson(origin->second).dump(), "\n");
  }
  return origins.empty() ? text : cat(text, "\n[stack.origins]\n", origins);
}

Stack parse_stack_toml(std::string_view text, std::string_view origin, const Stack& base) { return Reader(text, origin, base).read(); }

bool has_stack(std::string_view text) {
  for (const std::string& line : split(text, '\n'))
    if (begins_stack(line)) return true;
  return false;
}

std::string without_machine_tables(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  bool inside = false;
  for (std::string& line : lines) {
    if (begins_table(line)) inside = begins_stack(line) || begins_host(line);
    if (inside) line.clear();
  }
  return join(lines, "\n");
}

}  // namespace lockstep::plan
