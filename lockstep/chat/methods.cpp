// Methods of texts and dictionaries.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/chat/builtins.h"
#include "lockstep/chat/search.h"

namespace lockstep::chat {
namespace {

using Method = Value (*)(Budget& budget, const Value& self, const Arguments& arguments);

Value texts(Budget& budget, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(budget.text(std::string(part)));
    if (items.size() % 1024 == 0) budget.room(static_cast<int64_t>(2 * items.size() * sizeof(Value)));
  }
  return budget.list(std::move(items));
}

template <bool kLeft, bool kRight>
Value strip_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "strip");
  const Value* which = reader.next("chars");
  reader.finish();
  if (which && !which->is_none() && !which->is_string()) fail("strip: 'chars' is no text");
  if (which && which->is_string() && which->string().empty()) return self;
  const std::string cut = which && which->is_string() ? which->string() : "";
  budget.spend(static_cast<int64_t>(self.string().size() + 16 * cut.size()));
  return budget.text(strip(self.string(), cut, kLeft, kRight));
}

// Words between runs of white space; at most `most` cuts.
Value split_blanks(Budget& budget, const std::string& text, int64_t most, bool from_right) {
  std::vector<uint32_t> points = budgeted_points(budget, text);
  if (from_right) std::reverse(points.begin(), points.end());
  std::vector<Value> parts;
  const auto add = [&](size_t begin, size_t end) {
    std::vector<uint32_t> part(points.begin() + static_cast<ptrdiff_t>(begin), points.begin() + static_cast<ptrdiff_t>(end));
    if (from_right) std::reverse(part.begin(), part.end());
    parts.push_back(budget.text(from_code_points(part.data(), part.size())));
  };
  size_t at = 0;
  for (;;) {
    while (at < points.size() && is_space(points[at])) ++at;
    if (at == points.size()) break;
    size_t end = at;
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      end = points.size();
      while (end > at && is_space(points[end - 1])) --end;
      add(at, end);
      break;
    }
    while (end < points.size() && !is_space(points[end])) ++end;
    add(at, end);
    at = end;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return budget.list(std::move(parts));
}

template <bool kFromRight>
Value split_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "split");
  const Value* separator = reader.next("sep");
  const int64_t most = reader.integer("maxsplit", -1);
  reader.finish();
  if (!separator || separator->is_none()) return split_blanks(budget, self.string(), most, kFromRight);
  if (!separator->is_string() || separator->string().empty()) fail("split: the separator is no text, or empty");
  return texts(budget, split_text(budget, self.string(), separator->string(), most, kFromRight));
}

Value splitlines(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "splitlines");
  const bool keep = reader.flag("keepends", false);
  reader.finish();
  std::vector<Value> lines;
  const std::string& text = self.string();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\r", begin), text.size());
    const size_t next = end == text.size() ? end : end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    lines.push_back(budget.text(text.substr(begin, (keep ? next : end) - begin)));
    begin = next;
  }
  return budget.list(std::move(lines));
}

template <bool kEnd>
Value affix_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, kEnd ? "endswith" : "startswith");
  const Value affix = reader.required("affix");
  reader.finish();
  const auto has = [&](const Value& part) {
    budget.spend(1);
    if (!part.is_string()) fail(cat("startswith and endswith need a text, not ", part.type()));
    return kEnd ? self.string().ends_with(part.string()) : self.string().starts_with(part.string());
  };
  if (affix.is_list()) return Value(std::any_of(affix.items().begin(), affix.items().end(), has));
  return Value(has(affix));
}

template <std::string (*kFunction)(std::string_view)>
Value letters_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "a method that changes letters").finish();
  budget.spend(static_cast<int64_t>(self.string().size()));
  return budget.text(kFunction(self.string()));
}

Value replace_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "replace");
  const Value from = reader.required("old"), to = reader.required("new");
  const int64_t count = reader.integer("count", -1);
  reader.finish();
  if (!from.is_string() || !to.is_string()) fail("replace needs texts");
  TextBuilder out(budget);
  if (from.string().empty()) {
    // "abc" with "-" becomes "-a-b-c-": a place before each character and one at the end.
    const std::vector<uint32_t> points = budgeted_points(budget, self.string());
    const size_t places = points.size() + 1;
    const size_t used = count < 0 ? places : std::min(places, static_cast<size_t>(count));
    if (used == 0) return self;
    for (size_t i = 0; i < used; ++i) {
      out.add(to.string());
      if (i + 1 < used) out.add(from_code_points(&points[i], 1));
    }
    out.add(from_code_points(points.data() + used - 1, points.size() - (used - 1)));
  } else {
    bool first = true;
    for (const std::string_view part : split_text(budget, self.string(), from.string(), count, false)) {
      if (!std::exchange(first, false)) out.add(to.string());
      out.add(part);
    }
  }
  return budget.text(out.take());
}

template <bool kLast>
Value find_in_text(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "find");
  const Value part = reader.required("sub");
  reader.finish();
  if (!part.is_string()) fail("find needs a text");
  const std::string_view text = self.string();
  size_t at = kLast ? text.size() : find_text(budget, text, part.string(), 0);
  if (kLast && !part.string().empty()) {
    const std::vector<std::string_view> cut = split_text(budget, text, part.string(), 1, true);
    at = cut.size() == 2 ? cut[0].size() : std::string_view::npos;
  }
  if (at == std::string_view::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(budgeted_points(budget, text.substr(0, at)).size()));
}

Value count_in_text(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "count");
  const Value part = reader.required("sub");
  reader.finish();
  if (!part.is_string()) fail("count needs a text");
  if (part.string().empty()) return Value(length_of(budget, self) + 1);
  return Value(static_cast<int64_t>(split_text(budget, self.string(), part.string(), -1, false).size()) - 1);
}

Value join_method(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "join");
  const Value list = iterate(budget, reader.required("iterable"));
  reader.finish();
  TextBuilder out(budget);
  bool first = true;
  for (const Value& part : list.items()) {
    if (!part.is_string()) fail(cat("join needs texts, not ", part.type()));
    if (!std::exchange(first, false)) out.add(self.string());
    out.add(part.string());
  }
  return budget.text(out.take());
}

template <bool kEnd>
Value remove_affix(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, kEnd ? "removesuffix" : "removeprefix");
  const Value affix = reader.required("affix");
  reader.finish();
  if (!affix.is_string()) fail("removeprefix and removesuffix need a text");
  const std::string &text = self.string(), &part = affix.string();
  if (kEnd) return budget.text(text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text);
  return budget.text(text.starts_with(part) ? text.substr(part.size()) : text);
}

template <bool (*kHolds)(uint32_t)>
Value all_points(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "a method that asks what a text is").finish();
  const std::vector<uint32_t> points = budgeted_points(budget, self.string());
  return Value(!points.empty() && std::all_of(points.begin(), points.end(), kHolds));
}
bool is_digit(uint32_t point) { return point >= '0' && point <= '9'; }

template <bool kUpper>
Value is_case(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "isupper and islower").finish();
  budget.spend(static_cast<int64_t>(self.string().size()));
  const std::string &text = self.string(), up = upper(text), low = lower(text);
  return Value(up != low && text == (kUpper ? up : low));
}

Value dict_get(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "get");
  const Value key = reader.required("key");
  const Value* otherwise = reader.next("default");
  reader.finish();
  const Value* found = find(budget, self, key);
  return found ? *found : otherwise ? *otherwise : Value(None{});
}

template <bool kKeys, bool kValues>
Value dict_view(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "items, keys and values").finish();
  std::vector<Value> items;
  for (const auto& [key, value] : self.pairs())
    items.push_back(kKeys && kValues ? budget.list({key, value}, true) : kKeys ? key : value);
  return budget.list(std::move(items));
}

Value dict_copy(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "copy").finish();
  budget.room(static_cast<int64_t>(self.pairs().size() * 2 * sizeof(Value)));
  return budget.dict(self.pairs());
}

Value list_copy(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "copy").finish();
  budget.room(static_cast<int64_t>(self.items().size() * sizeof(Value)));
  return budget.list(self.items());
}

Value list_index(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "index");
  const Value wanted = reader.required("value");
  reader.finish();
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (equal(budget, self.items()[i], wanted)) return Value(static_cast<int64_t>(i));
  }
  fail("index: the list does not hold the value");
}

Value list_count(Budget& budget, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "count");
  const Value wanted = reader.required("value");
  reader.finish();
  return Value(static_cast<int64_t>(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& value) { return equal(budget, value, wanted); })));
}

// Jinja's sandbox refuses them, too.
Value changes_data(Budget&, const Value& self, const Arguments&) {
  fail(cat("a method that changes a ", self.type(), "; templates may only make new values"));
}

using Methods = std::map<std::string_view, Method>;

const Methods& methods_of(const Value& value) {
  static const Methods text = {
      {"strip", strip_method<true, true>}, {"lstrip", strip_method<true, false>}, {"rstrip", strip_method<false, true>},
      {"split", split_method<false>}, {"rsplit", split_method<true>}, {"splitlines", splitlines},
      {"startswith", affix_method<false>}, {"endswith", affix_method<true>}, {"upper", letters_method<upper>},
      {"lower", letters_method<lower>}, {"title", letters_method<title>}, {"capitalize", letters_method<capitalize>},
      {"replace", replace_method}, {"find", find_in_text<false>}, {"rfind", find_in_text<true>}, {"count", count_in_text},
      {"join", join_method}, {"removeprefix", remove_affix<false>}, {"removesuffix", remove_affix<true>},
      {"isdigit", all_points<is_digit>}, {"isspace", all_points<is_space>}, {"isupper", is_case<true>}, {"islower", is_case<false>}};
  static const Methods dict = {
      {"get", dict_get}, {"items", dict_view<true, true>}, {"keys", dict_view<true, false>}, {"values", dict_view<false, true>},
      {"copy", dict_copy}, {"update", changes_data}, {"pop", changes_data}, {"clear", changes_data},
      {"setdefault", changes_data}, {"popitem", changes_data}};
  static const Methods list = {
      {"copy", list_copy}, {"index", list_index}, {"count", list_count}, {"append", changes_data}, {"extend", changes_data},
      {"insert", changes_data}, {"pop", changes_data}, {"remove", changes_data}, {"sort", changes_data},
      {"reverse", changes_data}, {"clear", changes_data}};
  static const Methods none;
  return value.is_string() ? text : value.is_dict() ? dict : value.is_list() ? list : none;
}

}  // namespace

Value find_method(Budget& budget, const Value& value, const std::string& name) {
  const Methods& methods = methods_of(value);
  const auto found = methods.find(name);
  if (found == methods.end()) {
    constexpr std::array kOfPython = {"casefold", "center", "encode", "expandtabs", "format", "format_map", "index", "isalnum",
                                      "isalpha", "isascii", "isdecimal", "isidentifier", "isnumeric", "isprintable", "istitle",
                                      "ljust", "partition", "rindex", "rjust", "rpartition", "swapcase", "translate", "zfill"};
    if (value.is_string() && std::ranges::find(kOfPython, name) != kOfPython.end())
      fail(cat("the method '", name, "' of a text is not supported"));
    return {};
  }
  return budget.function(
      name,
      [&budget, value, method = found->second](const Arguments& arguments) { return method(budget, value, arguments); }, value);
}

}  // namespace lockstep::chat
