#include "lockstep/config/load.h"

#include <algorithm>
#include <optional>
#include <toml++/toml.h>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/toml_bounds.h"
#include "lockstep/config/values.h"

namespace lockstep::config {
namespace {

constexpr int kDeepestExtends = 16;

// A message and where its text stands, so that the messages of a file come in its order.
struct Problem {
  Message message;
  size_t line = 0;
  size_t column = 0;
};

struct Source {
  std::string name;  // as the user gave it
  std::vector<std::string> lines;
  std::optional<std::filesystem::path> folder;  // of the file; none for plain text
};

std::optional<Value> scalar(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  const auto* array = node.as_array();
  if (!array) return std::nullopt;
  std::vector<std::string> texts;
  std::vector<int64_t> integers;
  for (const toml::node& item : *array) {
    if (const auto* text = item.as_string()) texts.push_back(text->get());
    if (const auto* integer = item.as_integer()) integers.push_back(integer->get());
  }
  if (texts.size() == array->size()) return texts;
  return integers.size() == array->size() ? std::optional<Value>(integers) : std::nullopt;
}

// A table of plain values as the text that stands for it: "key=value key=value".
std::string text_of(const toml::table& table) {
  std::vector<std::string> words;
  for (const auto& [key, node] : table) {
    const std::optional<Value> value = scalar(node);
    const auto* text = value ? std::get_if<std::string>(&*value) : nullptr;
    words.push_back(cat(key.str(), "=", text ? *text : value ? print_value(*value) : "?"));
  }
  return join(words, " ");
}

std::optional<Value> tables(const toml::node& node) {
  const auto* array = node.as_array();
  if (!array) return std::nullopt;
  std::vector<std::string> texts;
  for (const toml::node& item : *array)
    if (const toml::table* table = item.as_table()) texts.push_back(text_of(*table));
  return !texts.empty() && texts.size() == array->size() ? std::optional<Value>(std::move(texts)) : std::nullopt;
}

bool is_section(const std::string& name) {
  const auto& known = sections();
  return std::any_of(known.begin(), known.end(), [&](const Section& section) { return section.name == name; });
}

class Loader {
 public:
  void read(const std::filesystem::path& file, int depth = 0) {
    read({.name = file.string(), .lines = split(read_file(file), '\n'), .folder = file.parent_path()}, depth);
  }

  void read(const Source& source, int depth = 0) {
    toml::table root;
    const std::string text = join(source.lines, "\n");
    if (is_refused(source, text)) return;
    try {
      root = toml::parse(text, source.name);
    } catch (const toml::parse_error& error) {
      const std::string why(error.description());
      return complain(source, error.source(), {.code = "LS1040", .what = "not TOML", .hint = why});
    }
    if (const toml::node* base = root.get("extends")) extend(source, *base, depth);
    const size_t before = problems_.size();
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      if (name == "extends") continue;
      if (const toml::table* section = node.as_table()) {
        read_section(source, key, *section);
      } else {
        complain(source, key.source(), outside_sections(name));
      }
    }
    std::stable_sort(problems_.begin() + static_cast<std::ptrdiff_t>(before), problems_.end(),
                     [](const Problem& a, const Problem& b) {
                       return std::pair(a.line, a.column) < std::pair(b.line, b.column);
                     });
  }

  void apply(const Override& item) {
    const size_t dot = item.key.find('.');
    const std::string section = item.key.substr(0, dot);
    const std::string name = dot == std::string::npos ? "" : item.key.substr(dot + 1);
    const Field* field = find_field(section, name);
    std::optional<Complaint> bad = field ? field->assign(loaded_.config, parse_value(*field, item.value))
                                         : std::optional(unknown_key(section, name));
    if (!bad) {
      loaded_.origin[item.key] = "--" + item.key;
      return;
    }
    problems_.push_back({.message = {.code = bad->code,
                                     .what = bad->what,
                                     .where = cat("--", item.key, "=", item.value),
                                     .way_out = bad->hint}});
  }

  LoadedConfig finish() {
    refuse();
    derive();
    for (const Section& section : sections()) {
      for (const Field& field : section.fields) loaded_.origin.try_emplace(field.key(), "default");
    }
    return std::move(loaded_);
  }

 private:
  // What the parser, which recurses, is not given.
  bool is_refused(const Source& source, const std::string& text) {
    if (text.size() > kMostTomlBytes) {
      problems_.push_back({.message = {.code = "LS1040",
                                       .what = cat("the file has ", text.size(), " bytes, more than ", kMostTomlBytes),
                                       .where = source.name}});
      return true;
    }
    const std::optional<TooDeep> found = too_deep(text);
    if (!found) return false;
    problems_.push_back({.message = {.code = "LS1040",
                                     .what = found->what,
                                     .where = cat(source.name, ":", found->line, ":", found->column),
                                     .way_out = "a key is [section] and name = value"},
                         .line = found->line,
                         .column = found->column});
    return true;
  }

  void read_section(const Source& source, const toml::key& section_key, const toml::table& section) {
    const std::string section_name(section_key.str());
    if (!is_section(section_name)) {
      return complain(source, section_key.source(), unknown_section(section_name));
    }
    for (const auto& [key, node] : section) {
      const std::string name(key.str());
      const Field* field = find_field(section_name, name);
      if (!field) {
        complain(source, key.source(), unknown_key(section_name, name));
        continue;
      }
      const std::optional<Value> of_tables = field->of_tables ? tables(node) : std::nullopt;
      const std::optional<Value> value = of_tables ? of_tables : scalar(node);
      const std::optional<Complaint> bad =
          value ? field->assign(loaded_.config, *value)
                : std::optional(Complaint{.code = "LS1043",
                                          .what = cat(field->key(), " is a table, a date or a list of other things than texts or integers"),
                                          .hint = cat("expected: ", field->type)});
      if (bad) {
        complain(source, node.source(), *bad);
      } else {
        loaded_.origin[field->key()] = cat(source.name, ":", key.source().begin.line);
      }
    }
  }

  void extend(const Source& source, const toml::node& node, int depth) {
    const auto refuse = [&](std::string what, std::string hint) {
      complain(source, node.source(), {.code = "LS1048", .what = std::move(what), .hint = std::move(hint)});
    };
    const auto* text = node.as_string();
    if (!text) return refuse("extends is not text", "write extends = \"base.toml\"");
    if (!source.folder) return refuse("extends in a text that is not a file", "read the file itself");
    if (depth == kDeepestExtends) return refuse("extends goes in a circle", "let one of the files extend nothing");
    const std::filesystem::path base = std::filesystem::path(text->get()).lexically_normal();
    if (base.is_absolute() || *base.begin() == "..") {
      return refuse("extends leaves the folder of its file", "put the file beside or below the one that extends it");
    }
    read(*source.folder / base, depth + 1);
  }

  static Complaint outside_sections(const std::string& name) {
    if (is_section(name)) {
      return {.code = "LS1043", .what = cat(name, " is a section"), .hint = cat("write [", name, "] above its keys")};
    }
    for (const Section& section : sections()) {
      if (find_field(section.name, name)) {
        return {.code = "LS1042",
                .what = cat("unknown key '", name, "' outside of any section"),
                .hint = cat("did you mean '", section.name, ".", name, "'?")};
      }
    }
    return {.code = "LS1042", .what = cat("unknown key '", name, "' outside of any section")};
  }

  // The source line with a caret below:   12 | stpes = 20_000
  //                                          | ^~~~~ did you mean 'train.steps'?
  void complain(const Source& source, const toml::source_region& region, const Complaint& complaint) {
    const toml::source_position at = region.begin;
    std::string line = at.line >= 1 && at.line <= source.lines.size() ? source.lines[at.line - 1] : "";
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::replace(line.begin(), line.end(), '\t', ' ');
    const bool one_line = region.end.line == at.line && region.end.column > at.column;
    const size_t length = one_line ? region.end.column - at.column : 1;
    const std::string mark = "^" + std::string(length - 1, '~') + (complaint.hint.empty() ? "" : " " + complaint.hint);
    const std::string excerpt = cat(pad_left(cat(at.line), 5), " | ", line, "\n", pad_left("", 5), " | ",
                                    std::string(at.column > 0 ? at.column - 1 : 0, ' '), mark);
    problems_.push_back({.message = {.code = complaint.code,
                                     .what = complaint.what + "\n" + excerpt,
                                     .where = cat(source.name, ":", at.line, ":", at.column)},
                         .line = at.line,
                         .column = at.column});
  }

  // All problems in one error: the first one's message, the others below it as they would stand alone.
  void refuse() const {
    if (problems_.empty()) return;
    Message all = problems_.front().message;
    if (problems_.size() > 1 && !all.way_out.empty()) all.what += "\n  " + std::exchange(all.way_out, "");
    for (size_t i = 1; i < problems_.size(); ++i) all.what += cat("\n", ConfigError(problems_[i].message).what());
    throw ConfigError(all);
  }

  // Defaults that follow from other values.
  void derive() {
    RunConfig& config = loaded_.config;
    const auto given = [&](const char* key) { return loaded_.origin.contains(key); };
    if (config.run.dir.empty()) {
      config.run.dir = "runs/" + config.run.name;
      loaded_.origin["run.dir"] = "default: runs/<name>";
    }
    if (given("optimizer.lr") && !given("optimizer.min_lr")) {
      config.optimizer.min_lr = config.optimizer.lr / 10;
      loaded_.origin["optimizer.min_lr"] = "default: lr / 10";
    }
    if (given("train.steps") && !given("optimizer.warmup_steps")) {
      config.optimizer.warmup_steps = std::min(config.optimizer.warmup_steps, config.train.steps / 10);
      loaded_.origin["optimizer.warmup_steps"] = "default: at most steps / 10";
    }
  }

  LoadedConfig loaded_;
  std::vector<Problem> problems_;
};

}  // namespace

LoadedConfig load_config(const std::vector<std::filesystem::path>& files, const std::vector<Override>& overrides) {
  Loader loader;
  for (const auto& file : files) loader.read(file);
  for (const auto& item : overrides) loader.apply(item);
  return loader.finish();
}

LoadedConfig load_config_text(std::string_view text, std::string_view name) {
  Loader loader;
  loader.read({.name = std::string(name), .lines = split(text, '\n'), .folder = std::nullopt});
  return loader.finish();
}

std::string resolved_toml(const LoadedConfig& loaded) {
  std::string text;
  for (const Section& section : sections()) {
    text += cat(text.empty() ? "" : "\n", "[", section.name, "]\n");
    for (const Field& field : section.fields) {
      const std::string value = field.print(loaded.config);
      const auto origin = loaded.origin.find(field.key());
      const std::string comment = origin == loaded.origin.end() ? "default" : origin->second;
      text += value.empty() ? cat("# ", field.name, " is not set\n")
                            : cat(pad_right(cat(field.name, " = ", value), 40), "  # ", comment, "\n");
    }
  }
  return text;
}

}  // namespace lockstep::config
