#include "lockstep/config/values.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::config {
namespace {

std::string kind_of(const Value& value) {
  constexpr const char* names[] = {"true or false", "an integer", "a number with a fraction or exponent", "text", "a list", "a list"};
  return names[value.index()];
}

Complaint wrong_type(const std::string& key, const Value& value, const std::string& expected) {
  return {.code = "LS1043",
          .what = cat(key, " = ", print_value(value), " is ", kind_of(value)),
          .hint = cat("expected: ", expected)};
}

template <typename T>
Complaint wrong_type(const std::string& key, const Value& value, const Rule& rule) {
  return wrong_type(key, value, type_name(T{}, rule));
}

template <typename T>
Verdict in_range(const std::string& key, const Value& value, const Rule& rule, T number) {
  const double wide = static_cast<double>(number);
  const bool high_enough = rule.open_below ? wide > rule.least : wide >= rule.least;
  if (high_enough && wide < rule.below && std::isfinite(wide)) return std::nullopt;
  return Complaint{.code = "LS1044",
                   .what = cat(key, " = ", print_value(value), " is out of range"),
                   .hint = cat("expected: ", type_name(T{}, rule))};
}

std::string range_text(const Rule& rule) {
  std::string text;
  if (std::isfinite(rule.least)) text += cat(rule.open_below ? " > " : " >= ", number_text(rule.least));
  if (std::isfinite(rule.below)) text += cat(text.empty() ? " < " : " and < ", number_text(rule.below));
  return text;
}

// Of a word with blanks around it.
std::optional<int64_t> whole_number(const std::string& word) {
  const size_t begin = word.find_first_not_of(' '), end = word.find_last_not_of(' ');
  if (begin == std::string::npos) return std::nullopt;
  const Value value = parse_scalar(word.substr(begin, end - begin + 1));
  const int64_t* integer = std::get_if<int64_t>(&value);
  return integer ? std::optional(*integer) : std::nullopt;
}

Rule rule_of_schedules() {
  Rule rule{.choices = choices_of(ScheduleKind{}), .or_begins = "file:"};
  rule.choices.pop_back();  // kFile has a path
  return rule;
}

// The shortest decimal text without an exponent that reads back as the same number.
std::string fixed_text(double value) {
  char buffer[400];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  return std::string(buffer, result.ptr);
}

}  // namespace

std::string name_of(const PipelineSchedule& schedule) {
  const std::string name = name_of(schedule.kind);
  return schedule.kind == ScheduleKind::kFile ? cat(name, ":", schedule.file) : name;
}

std::string print_value(bool value) { return value ? "true" : "false"; }
std::string print_value(int64_t value) { return std::to_string(value); }
std::string print_value(double value) { return number_text(value); }

std::string print_value(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    constexpr char hex[] = "0123456789abcdef";
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += cat("\\u00", hex[c >> 4], hex[c & 15]);
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string print_value(const Interval& value) {
  return value.steps ? print_value(*value.steps) : print_value(Duration{value.seconds.value_or(0)});
}

std::string print_value(const Duration& value) {
  const double minutes = value.seconds / 60;
  if (minutes >= 1 && minutes == std::floor(minutes)) return cat("\"", fixed_text(minutes), "min\"");
  return cat("\"", fixed_text(value.seconds), "s\"");
}

// The largest unit that says it exactly.
std::string print_value(const Bytes& value) {
  const char* units[] = {"GiB", "MiB", "KiB"};
  int64_t size = kGiB;
  for (const char* unit : units) {
    if (value.count != 0 && value.count % size == 0) return cat("\"", value.count / size, unit, "\"");
    size /= 1024;
  }
  return print_value(value.count);
}

std::string print_value(const std::vector<std::string>& value) {
  std::vector<std::string> quoted;
  for (const std::string& word : value) quoted.push_back(print_value(word));
  return cat("[", join(quoted, ", "), "]");
}
std::string print_value(const std::vector<int64_t>& value) {
  std::vector<std::string> numbers;
  for (const int64_t number : value) numbers.push_back(cat(number));
  return cat("[", join(numbers, ", "), "]");
}
std::string print_value(const Counts& value) {
  return print_value(std::vector<int64_t>(value.list.begin(), value.list.end()));
}
std::string print_value(const PipelineSchedule& value) { return print_value(name_of(value)); }

std::string print_value(const Value& value) {
  return std::visit([](const auto& plain) { return print_value(plain); }, value);
}

Value parse_scalar(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    const bool separator = text[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1);
    if (!separator) digits += text[i];
  }
  if (const auto integer = parse_number<int64_t>(digits)) return *integer;
  if (const auto number = parse_number<double>(digits)) return *number;
  return text;
}

std::string type_name(bool, const Rule&) { return "true | false"; }
std::string type_name(int64_t, const Rule& rule) {
  if (!std::isfinite(rule.least) || !std::isfinite(rule.below) || rule.open_below) return "integer" + range_text(rule);
  return cat("integer ", number_text(rule.least), " to ", number_text(rule.below - 1));
}
std::string type_name(double, const Rule& rule) { return "number" + range_text(rule); }
std::string type_name(const std::string&, const Rule& rule) {
  if (rule.choices.empty()) return "text";
  return cat(join(rule.choices, " | "), rule.or_begins.empty() ? "" : cat(" | ", rule.or_begins, "PATH"));
}
std::string type_name(const Interval&, const Rule&) { return "steps | duration"; }
std::string type_name(const Duration&, const Rule&) { return "duration"; }
std::string type_name(const Bytes&, const Rule&) { return "bytes"; }
std::string type_name(const PipelineSchedule&, const Rule&) { return type_name(std::string(), rule_of_schedules()); }
std::string list_type_name(const Rule& rule) { return cat(join(rule.choices, " | "), ", or a list"); }

std::string type_name(const Counts&, const Rule& rule) { return cat("integers", range_text(rule), ", as [3, 4, 4, 3] or \"3,4*2,3\""); }

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, bool& out) {
  const bool* flag = std::get_if<bool>(&value);
  if (!flag) return wrong_type<bool>(key, value, rule);
  out = *flag;
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, int64_t& out) {
  const int64_t* integer = std::get_if<int64_t>(&value);
  if (!integer) return wrong_type<int64_t>(key, value, rule);
  if (Verdict bad = in_range(key, value, rule, *integer)) return bad;
  out = *integer;
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, double& out) {
  const int64_t* integer = std::get_if<int64_t>(&value);
  const double* number = std::get_if<double>(&value);
  if (!integer && !number) return wrong_type<double>(key, value, rule);
  const double wide = integer ? static_cast<double>(*integer) : *number;
  if (Verdict bad = in_range(key, value, rule, wide)) return bad;
  out = wide;
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, std::string& out) {
  const std::string* text = std::get_if<std::string>(&value);
  if (!text) return wrong_type<std::string>(key, value, rule);
  const bool other = !rule.or_begins.empty() && text->starts_with(rule.or_begins) && *text != rule.or_begins;
  const bool chosen = other || std::find(rule.choices.begin(), rule.choices.end(), *text) != rule.choices.end();
  if (!rule.choices.empty() && !chosen) {
    const std::string near = nearest(*text, rule.choices);
    const std::string file = rule.or_begins.empty() ? "" : cat(" and no ", rule.or_begins, "PATH");
    return Complaint{.code = "LS1045",
                     .what = cat(key, " = ", print_value(value), " is none of ", join(rule.choices, ", "), file),
                     .hint = near.empty() ? cat("expected: ", type_name(std::string(), rule))
                                          : cat("did you mean \"", near, "\"?")};
  }
  out = *text;
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Interval& out) {
  if (std::holds_alternative<std::string>(value)) {
    Duration duration;
    if (Verdict bad = read_value(key, value, {.least = 0, .open_below = true}, duration)) {
      if (bad->code == "LS1046") bad->hint += ", or a number of steps without quotes";
      return bad;
    }
    out = {.steps = std::nullopt, .seconds = duration.seconds};
    return std::nullopt;
  }
  int64_t steps = 0;
  if (!std::holds_alternative<int64_t>(value)) return wrong_type<Interval>(key, value, rule);
  if (Verdict bad = read_value(key, value, rule, steps)) return bad;
  out = {.steps = steps, .seconds = std::nullopt};
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Duration& out) {
  const std::string* text = std::get_if<std::string>(&value);
  const std::optional<double> seconds = text ? parse_duration(*text) : std::nullopt;
  if (!seconds) {
    return Complaint{.code = "LS1046",
                     .what = cat(key, " = ", print_value(value), " is not a duration with a unit"),
                     .hint = "write \"30min\", \"90s\" or \"2h\""};
  }
  if (Verdict bad = in_range(key, value, rule, *seconds)) return bad;
  out = {.seconds = *seconds};
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Bytes& out) {
  const std::string* text = std::get_if<std::string>(&value);
  const int64_t* integer = std::get_if<int64_t>(&value);
  const std::optional<int64_t> bytes = text ? parse_bytes(*text) : integer ? std::optional(*integer) : std::nullopt;
  if (!bytes)
    return Complaint{.code = "LS1046",
                     .what = cat(key, " = ", print_value(value), " is not a size of memory"),
                     .hint = "write \"300MiB\", \"80GiB\" or a number of bytes"};
  if (Verdict bad = in_range(key, value, rule, *bytes)) return bad;
  out = {.count = *bytes};
  return std::nullopt;
}

Verdict read_value(const std::string& key, const Value& value, const Rule&, PipelineSchedule& out) {
  std::string text;
  const Rule rule = rule_of_schedules();
  if (Verdict bad = read_value(key, value, rule, text)) return bad;
  const auto named = std::find(rule.choices.begin(), rule.choices.end(), text);
  if (named == rule.choices.end())
    out = {.kind = ScheduleKind::kFile, .file = text.substr(rule.or_begins.size())};
  else
    out = {.kind = static_cast<ScheduleKind>(named - rule.choices.begin())};
  return std::nullopt;
}

Verdict read_words(const std::string& key, const Value& value, const Rule& rule, std::vector<std::string>& out) {
  std::vector<std::string> words;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    words = *list;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    if (!text->empty()) words = split(*text, ',');
  } else {
    return wrong_type(key, value, list_type_name(rule));
  }
  for (const std::string& word : words) {
    std::string checked;
    if (Verdict bad = read_value(key, Value(word), rule, checked)) return bad;
  }
  out = std::move(words);
  return std::nullopt;
}

// A list of integers; or a text, or a list of them, with counts and repetitions: "3,4*2,3" is 3, 4, 4, 3.
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, Counts& out) {
  std::vector<std::string> words;
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    words = {cat(*integer)};
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    for (const int64_t count : *integers) words.push_back(cat(count));
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    words = *texts;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    if (!text->empty()) words = split(*text, ',');
  } else {
    return wrong_type<Counts>(key, value, rule);
  }
  constexpr int64_t kMost = 100'000;
  std::vector<int> counts;
  for (const std::string& word : words) {
    const size_t star = word.find('*');
    const auto count = whole_number(word.substr(0, star));
    const auto times = star == std::string::npos ? std::optional<int64_t>(1) : whole_number(word.substr(star + 1));
    if (!count || !times || *count > kMost || *times < 1 || *times > kMost - std::ssize(counts))
      return Complaint{.code = "LS1046",
                       .what = cat(key, " = ", print_value(value), ": ", print_value(word), " is no count of blocks"),
                       .hint = "write [3, 4, 4, 3], or \"3,4*2,3\" for the same"};
    if (Verdict bad = in_range(key, value, rule, *count)) return bad;
    counts.insert(counts.end(), static_cast<size_t>(*times), static_cast<int>(*count));
  }
  out = {.list = std::move(counts)};
  return std::nullopt;
}

}  // namespace lockstep::config
