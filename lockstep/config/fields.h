// The table of everything a user can set. Each field is declared once, in fields.cpp; parsing, overrides, --help, the
// resolved file and docs/config.md all follow from it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::config {

// Ranks of a mesh, and of each of its axes.
inline constexpr int kMostRanks = 1 << 20;
// Counts of sequences and tokens: a product of two fits into 64 bits.
inline constexpr int64_t kSizesBelow = int64_t{1} << 31;

// What a TOML scalar can be, or a list of texts or of integers.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>>;

// What is wrong with a key or a value; the caller knows where it stands.
struct Complaint {
  std::string code;
  std::string what;
  std::string hint{};
};

struct Field {
  std::string section;
  std::string name;
  std::string type;  // for people, with the range: "integer >= 1"
  std::string unit;  // "steps", "tokens", or empty
  std::string help;
  bool is_text;  // text and choices need no quotes in an override
  std::string may_differ{};  // why each rank may have its own value; empty: all ranks have the same
  bool of_tables = false;    // [[section.name]] too: each table as a text, "key=value key=value"

  // The value as TOML, or "" where it is unset.
  std::function<std::string(const RunConfig&)> print;
  // Puts the value into the configuration, or says why not and leaves it as it was.
  std::function<std::optional<Complaint>(RunConfig&, const Value&)> assign;
  std::function<void(RunConfig&)> reset;  // to the default

  std::string key() const { return section + "." + name; }
  std::string default_text() const { return print(RunConfig{}); }
};

struct Section {
  std::string name;
  std::string help;
  std::vector<Field> fields;
};

const std::vector<Section>& sections();
const Field* find_field(std::string_view section, std::string_view name);
const Field* find_field(std::string_view key);  // "section.name"

// LS1041 unknown section, LS1042 unknown key; with the nearest name.
Complaint unknown_key(const std::string& section, const std::string& name);
Complaint unknown_section(const std::string& section);

// `text` of `--section.field=text` as a value: as it stands where the field is_text, else what TOML would make of it.
Value parse_value(const Field& field, const std::string& text);

// The word used in files.
template <typename T>
  requires std::is_enum_v<T>
std::string name_of(T value) {
  return choices_of(T{}).at(static_cast<size_t>(value));
}
std::string name_of(const PipelineSchedule& schedule);  // "1f1b", "file:PATH"

// "field  TYPE  help (default ...)", one line each, for --help.
std::string fields_help();
// The text of docs/config.md.
std::string config_reference_markdown();

}  // namespace lockstep::config
