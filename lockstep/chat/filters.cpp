// Filters: value|name(arguments).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/chat/builtins.h"
#include "lockstep/chat/number_filters.h"
#include "lockstep/chat/search.h"

namespace lockstep::chat {
namespace {

using Values = std::vector<Value>;

template <std::string (*kFunction)(std::string_view)>
Value letters(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "a filter that changes letters").finish();
  const std::string text = text_of(budget, operand);
  budget.spend(static_cast<int64_t>(text.size()));
  return budget.text(kFunction(text));
}

// Jinja's words end at white space, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string out, word;
  const auto end_word = [&] {
    out += capitalize(word);
    word.clear();
  };
  for (const uint32_t point : code_points(text)) {
    const bool between = is_space(point) || (point < 128 && std::string_view("-({[<").find(static_cast<char>(point)) != std::string_view::npos);
    if (between) end_word();
    append_utf8(between ? out : word, point);
  }
  end_word();
  return out;
}

Value to_json_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "tojson");
  JsonStyle style;
  style.ascii = reader.flag("ensure_ascii", false);
  style.indent = static_cast<int>(std::clamp<int64_t>(reader.integer("indent", -1), -1, 32));
  if (const Value* separators = reader.next("separators"); separators && !separators->is_none()) {
    if (!separators->is_list() || separators->items().size() != 2) fail("tojson: separators are two texts");
    style.item_separator = text_of(budget, separators->items()[0]);
    style.key_separator = text_of(budget, separators->items()[1]);
  }
  style.sort_keys = reader.flag("sort_keys", false);
  reader.finish();
  return budget.text(to_json(budget, operand, style));
}

Value trim(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "trim");
  const Value* which = reader.next("chars");
  reader.finish();
  const bool given = which && !which->is_none();
  const std::string text = text_of(budget, operand), cut = given ? text_of(budget, *which) : "";
  if (given && cut.empty()) return budget.text(text);
  budget.spend(static_cast<int64_t>(text.size() + 16 * cut.size()));
  return budget.text(strip(text, cut, true, true));
}

Value default_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "default");
  const Value* otherwise = reader.next("default_value");
  const bool also_false = reader.flag("boolean", false);
  reader.finish();
  if (operand.is_undefined() || (also_false && !operand.truthy())) return otherwise ? *otherwise : budget.text("");
  return operand;
}

// The part of each element that attribute="a.b" or attribute=0 names.
Value part_of(Budget& budget, Value value, const Value& path) {
  if (path.is_integer()) return item(budget, value, path);
  for (const std::string& name : split(text_of(budget, path), '.')) {
    int64_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool number = !name.empty() && read.ec == std::errc() && read.ptr == name.data() + name.size();
    value = item(budget, value, number ? Value(index) : budget.text(name));
  }
  return value;
}

Value join_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "join");
  const Value* separator = reader.next("d");
  const Value* path = reader.next("attribute");
  reader.finish();
  const std::string between = separator ? text_of(budget, *separator) : "";
  TextBuilder out(budget);
  bool first = true;
  const Value list = iterate(budget, operand);
  for (const Value& value : list.items()) {
    if (!std::exchange(first, false)) out.add(between);
    out.add(text_of(budget, path && !path->is_none() ? part_of(budget, value, *path) : value));
  }
  return budget.text(out.take());
}

Value length(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "length").finish();
  return Value(length_of(budget, operand));
}

Value replace_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  const Value method = find_method(budget, budget.text(text_of(budget, operand)), "replace");
  Arguments texts = arguments;
  for (size_t i = 0; i < texts.positional.size() && i < 2; ++i) texts.positional[i] = budget.text(text_of(budget, texts.positional[i]));
  return (*method.get<Value::Function>())->call(texts);
}

template <bool kLast>
Value end_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "first and last").finish();
  const Value list = iterate(budget, operand);
  const Values& items = list.items();
  return items.empty() ? budget.undefined(kLast ? "last of nothing" : "first of nothing") : kLast ? items.back() : items.front();
}

Value list_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "list").finish();
  const Value items = iterate(budget, operand);
  budget.room(static_cast<int64_t>(items.items().size() * sizeof(Value)));
  return budget.list(items.items());
}

Value string_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "string").finish();
  return budget.text(text_of(budget, operand));
}

Value items_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "items").finish();
  if (operand.is_undefined()) return budget.list({});
  if (operand.type() != "dict") fail(cat("items of a value of type ", operand.type()));
  return (*find_method(budget, operand, "items").get<Value::Function>())->call({});
}

// map('filter', ...) or map(attribute='name', default=...).
Value map_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  const Budget::Level level(budget);  // a filter that is mapped may be map
  Values results;
  if (!operand.truthy()) return budget.list({});  // as Jinja, whatever it is
  const Value list = iterate(budget, operand);
  if (arguments.positional.empty()) {
    ArgumentReader reader(arguments, "map");
    const Value path = reader.required("attribute");
    const Value* otherwise = reader.next("default");
    reader.finish();
    for (const Value& value : list.items()) {
      const Value part = part_of(budget, value, path);
      results.push_back(part.is_undefined() && otherwise ? *otherwise : part);
    }
    return budget.list(std::move(results));
  }
  const std::string name = text_of(budget, arguments.positional[0]);
  const Filter filter = find_filter(name);
  if (!filter) fail(cat("map: the filter '", name, "' is not supported"));
  budget.spend(static_cast<int64_t>(arguments.positional.size()));
  const Arguments rest{.positional = {arguments.positional.begin() + 1, arguments.positional.end()}, .named = arguments.named};
  for (const Value& value : list.items()) results.push_back(filter(budget, value, rest));
  return budget.list(std::move(results));
}

// select('test', ...), selectattr('path', 'test', ...) and their opposites; without a test the value itself decides.
template <bool kWanted, bool kByAttribute>
Value select_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  if (!operand.truthy()) return budget.list({});  // as Jinja, whatever it is
  Arguments rest = arguments;
  const auto take = [&] {
    Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (kByAttribute && rest.positional.empty()) fail("selectattr and rejectattr need an attribute");
  const Value path = kByAttribute ? take() : Value(None{});
  Test test = nullptr;
  if (!rest.positional.empty()) {
    const std::string name = text_of(budget, take());
    test = find_test(name);
    if (!test) fail(cat("the test '", name, "' is not supported"));
  }
  Values results;
  const Value list = iterate(budget, operand);
  for (const Value& value : list.items()) {
    budget.spend(1);
    const Value subject = kByAttribute ? part_of(budget, value, path) : value;
    if ((test ? test(budget, subject, rest) : subject.truthy()) == kWanted) results.push_back(value);
  }
  return budget.list(std::move(results));
}

// What sorting and comparing look at: an attribute, texts without their case.
Value key_of(Budget& budget, const Value& value, const Value* path, bool case_sensitive) {
  Value key = path && !path->is_none() ? part_of(budget, value, *path) : value;
  if (case_sensitive || !key.is_string()) return key;
  budget.spend(static_cast<int64_t>(key.string().size()));
  return budget.text(lower(key.string()));
}

Value sorted(Budget& budget, const Value& list, const Value* path, bool case_sensitive, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  budget.room(static_cast<int64_t>(list.items().size() * 4 * sizeof(Value)));
  for (const Value& value : list.items()) keyed.emplace_back(key_of(budget, value, path, case_sensitive), value);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return !equal(budget, a.first, b.first) && (reverse ? compare(budget, b.first, a.first) < 0 : compare(budget, a.first, b.first) < 0);
  });
  Values values;
  for (auto& [key, value] : keyed) values.push_back(std::move(value));
  return budget.list(std::move(values));
}

Value sort_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "sort");
  const bool reverse = reader.flag("reverse", false), case_sensitive = reader.flag("case_sensitive", false);
  const Value* path = reader.next("attribute");
  reader.finish();
  return sorted(budget, iterate(budget, operand), path, case_sensitive, reverse);
}

Value dictsort_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "dictsort");
  const bool case_sensitive = reader.flag("case_sensitive", false);
  const std::string by = reader.string("by", "key");
  const bool reverse = reader.flag("reverse", false);
  reader.finish();
  if (by != "key" && by != "value") fail("dictsort: 'by' is 'key' or 'value'");
  const Value path(int64_t{by == "value"});
  return sorted(budget, items_filter(budget, operand, {}), &path, case_sensitive, reverse);
}

Value reverse_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "reverse").finish();
  if (operand.is_string()) return slice(budget, operand, Value(None{}), Value(None{}), Value(int64_t{-1}));
  const Value list = iterate(budget, operand);
  budget.room(static_cast<int64_t>(list.items().size() * sizeof(Value)));
  return budget.list({list.items().rbegin(), list.items().rend()});
}

Value unique_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "unique");
  const bool case_sensitive = reader.flag("case_sensitive", false);
  const Value* path = reader.next("attribute");
  reader.finish();
  Values keys, results;
  const Value list = iterate(budget, operand);
  for (const Value& value : list.items()) {
    const Value key = key_of(budget, value, path, case_sensitive);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& other) { return equal(budget, key, other); })) continue;
    keys.push_back(key);
    results.push_back(value);
  }
  return budget.list(std::move(results));
}

template <bool kLargest>
Value extreme_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "min and max");
  const bool case_sensitive = reader.flag("case_sensitive", false);
  const Value* path = reader.next("attribute");
  reader.finish();
  const Value list = iterate(budget, operand);
  const Values& items = list.items();
  if (items.empty()) return budget.undefined("an extreme of nothing");
  const Value* best = &items[0];
  for (const Value& value : items) {
    const int order = compare(budget, key_of(budget, value, path, case_sensitive), key_of(budget, *best, path, case_sensitive));
    if (kLargest ? order > 0 : order < 0) best = &value;
  }
  return *best;
}

Value sum_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "sum");
  const Value* path = reader.next("attribute");
  const Value* start = reader.next("start");
  reader.finish();
  double total = start ? start->is_number() ? start->number() : (fail("sum: 'start' is no number"), 0.0) : 0.0;
  bool real = start && start->get<double>();
  const Value list = iterate(budget, operand);
  for (const Value& value : list.items()) {
    budget.spend(1);
    const Value number = path && !path->is_none() ? part_of(budget, value, *path) : value;
    if (!number.is_number()) fail(cat("sum of a value of type ", number.type()));
    real |= number.get<double>() != nullptr;
    total += number.number();
  }
  if (real) return Value(total);
  if (std::abs(total) > 9007199254740992.0) fail("sum: a number beyond 2^53");
  return Value(static_cast<int64_t>(total));
}

Value indent_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "indent");
  const Value* width = reader.next("width");
  const bool first = reader.flag("first", false), blank = reader.flag("blank", false);
  reader.finish();
  if (width && !width->is_integer() && !width->is_string()) fail("indent: 'width' is a number or a text");
  if (width && width->is_integer() && (width->integer() < 0 || width->integer() > 1000)) fail("indent: a width of 0 to 1000 is needed");
  const std::string space = width && width->is_string() ? width->string()
                                                        : std::string(width ? static_cast<size_t>(width->integer()) : 4, ' ');
  const std::string text = text_of(budget, operand);
  TextBuilder out(budget);
  for (size_t begin = 0, line = 0;; ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (line == 0 ? first : blank || end > begin) out.add(space);
    out.add(std::string_view(text).substr(begin, end - begin));
    if (end == text.size()) break;
    out.add('\n');
    begin = end + 1;
  }
  return budget.text(out.take());
}

Value escape_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "escape").finish();
  TextBuilder out(budget);
  for (const char c : text_of(budget, operand)) {
    if (c == '&') out.add("&amp;");
    else if (c == '<') out.add("&lt;");
    else if (c == '>') out.add("&gt;");
    else if (c == '\'') out.add("&#39;");
    else if (c == '"') out.add("&#34;");
    else out.add(c);
  }
  return budget.text(out.take());
}

Value safe_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "safe").finish();
  return budget.text(text_of(budget, operand));
}

Value attr_filter(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "attr");
  const std::string name = text_of(budget, reader.required("name"));
  reader.finish();
  return operand.is_dict() && !operand.is_namespace() ? find_method(budget, operand, name) : attribute(budget, operand, name);
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> filters = {
      {"abs", abs_filter}, {"attr", attr_filter}, {"capitalize", letters<capitalize>}, {"count", length}, {"d", default_filter},
      {"default", default_filter}, {"dictsort", dictsort_filter}, {"e", escape_filter}, {"escape", escape_filter},
      {"first", end_filter<false>}, {"float", float_filter}, {"indent", indent_filter}, {"int", int_filter},
      {"items", items_filter}, {"join", join_filter}, {"last", end_filter<true>}, {"length", length}, {"list", list_filter},
      {"lower", letters<lower>}, {"map", map_filter}, {"max", extreme_filter<true>}, {"min", extreme_filter<false>},
      {"reject", select_filter<false, false>}, {"rejectattr", select_filter<false, true>}, {"replace", replace_filter},
      {"reverse", reverse_filter}, {"round", round_filter}, {"safe", safe_filter}, {"select", select_filter<true, false>},
      {"selectattr", select_filter<true, true>}, {"sort", sort_filter}, {"string", string_filter}, {"sum", sum_filter},
      {"title", letters<title_words>}, {"tojson", to_json_filter}, {"trim", trim}, {"unique", unique_filter}, {"upper", letters<upper>}};
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace lockstep::chat
