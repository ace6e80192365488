// How one value of each type is read, judged and printed. Used by the table in fields.cpp.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/config/fields.h"

namespace lockstep::config {

// What a field accepts: a range for numbers, or a list of choices for text.
struct Rule {
  double least = -std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();  // exclusive
  bool open_below = false;                                 // `least` itself is refused
  std::string unit{};
  std::vector<std::string> choices{};
  std::string or_begins{};  // beside the choices: any longer text that begins so, as "file:"
};

template <typename T>
struct Unwrapped {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

template <typename T>
inline constexpr bool kIsText = std::is_enum_v<typename Unwrapped<T>::Type> || std::is_same_v<T, PipelineSchedule> ||
                                std::is_same_v<typename Unwrapped<T>::Type, std::string>;

// As TOML.
std::string print_value(bool value);
std::string print_value(int64_t value);
std::string print_value(double value);
std::string print_value(const std::string& value);
std::string print_value(const Interval& value);
std::string print_value(const Duration& value);
std::string print_value(const Bytes& value);
std::string print_value(const PipelineSchedule& value);
std::string print_value(const Counts& value);
std::string print_value(const DenseLayers& value);
std::string print_value(const OptimizerRules& value);
std::string print_value(const std::vector<std::string>& value);
std::string print_value(const std::vector<int64_t>& value);
std::string print_value(const Value& value);

// "true", "20_000", "3e-4" as what they say, everything else as text.
Value parse_scalar(const std::string& text);

// Each writes `out` only where the value is good. LS1043 wrong type, LS1044 out of range, LS1045 none of the choices,
// LS1046 a duration, a size of memory or a list of counts that cannot be read.
using Verdict = std::optional<Complaint>;
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, bool& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, int64_t& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, double& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, std::string& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Interval& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Duration& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Bytes& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, PipelineSchedule& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Counts& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, DenseLayers& out);
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, OptimizerRules& out);

// "integer", "number", ... with the range.
std::string type_name(bool, const Rule& rule);
std::string type_name(int64_t, const Rule& rule);
std::string type_name(double, const Rule& rule);
std::string type_name(const std::string&, const Rule& rule);
std::string type_name(const Interval&, const Rule& rule);
std::string type_name(const Duration&, const Rule& rule);
std::string type_name(const Bytes&, const Rule& rule);
std::string type_name(const PipelineSchedule&, const Rule& rule);
std::string type_name(const Counts&, const Rule& rule);
std::string type_name(const DenseLayers&, const Rule& rule);
std::string type_name(const OptimizerRules&, const Rule& rule);

// A list of choices, or a text with commas: "optimizer,activations".
Verdict read_words(const std::string& key, const Value& value, const Rule& rule, std::vector<std::string>& out);
std::string list_type_name(const Rule& rule);

// int, enums, lists of these and optionals in terms of the ones above.
template <typename T>
  requires std::is_enum_v<T>
Rule rule_of_choices() {
  Words words = choices_of(T{});
  words.resize(words.size() - kWordsWithin<T>);
  return {.choices = std::move(words)};
}

template <typename T>
std::string type_name(const List<T>&, const Rule&) {
  return list_type_name(rule_of_choices<T>());
}

template <typename T>
std::string type_text(const Rule& rule) {
  using Plain = typename Unwrapped<T>::Type;
  if constexpr (std::is_enum_v<Plain>) {
    return type_name(std::string(), rule_of_choices<Plain>());
  } else if constexpr (std::is_same_v<Plain, int>) {
    return type_name(int64_t{0}, rule);
  } else {
    return type_name(Plain{}, rule);
  }
}

template <typename T>
  requires std::is_enum_v<T>
std::string print_value(T value) {
  return print_value(name_of(value));
}

template <typename T>
std::string print_value(const List<T>& value) {
  std::vector<std::string> words;
  for (const T item : value.list) words.push_back(name_of(item));
  return words.size() == 1 ? print_value(words[0]) : print_value(words);
}

inline std::string print_value(int value) { return print_value(static_cast<int64_t>(value)); }

template <typename T>
std::string print_value(const std::optional<T>& value) {
  return value ? print_value(*value) : "";
}

template <typename T>
  requires std::is_enum_v<T>
Verdict read_value(const std::string& key, const Value& value, const Rule&, T& out) {
  std::string text;
  const Rule rule = rule_of_choices<T>();
  if (Verdict bad = read_value(key, value, rule, text)) return bad;
  for (size_t i = 0; i < rule.choices.size(); ++i) {
    if (rule.choices[i] == text) out = static_cast<T>(i);
  }
  return std::nullopt;
}

template <typename T>
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, List<T>& out) {
  std::vector<std::string> words;
  if (Verdict bad = read_words(key, value, rule_of_choices<T>(), words)) return bad;
  out.list.clear();
  for (const std::string& word : words) {
    T item{};
    if (Verdict bad = read_value(key, Value(word), rule, item)) return bad;
    out.list.push_back(item);
  }
  return std::nullopt;
}

inline Verdict read_value(const std::string& key, const Value& value, Rule rule, int& out) {
  rule.below = std::min(rule.below, 1e9);
  int64_t wide = 0;
  if (Verdict bad = read_value(key, value, rule, wide)) return bad;
  out = static_cast<int>(wide);
  return std::nullopt;
}

template <typename T>
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, std::optional<T>& out) {
  T plain{};
  if (Verdict bad = read_value(key, value, rule, plain)) return bad;
  out = std::move(plain);
  return std::nullopt;
}

}  // namespace lockstep::config
