// Tests: value is name(arguments).
#include <map>

#include "lockstep/chat/arithmetic.h"
#include "lockstep/chat/builtins.h"
#include "lockstep/chat/characters.h"

namespace lockstep::chat {
namespace {

template <bool (*kHolds)(const Value&)>
bool plain(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "a test").finish();
  return kHolds(operand);
}

template <bool (*kHolds)(const Value&, const Value&)>
bool with_other(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "a test");
  const Value& other = reader.required("other");
  reader.finish();
  return kHolds(operand, other);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.type() == "dict"; }
bool is_number(const Value& value) { return value.is_number(); }
bool is_integer(const Value& value) { return value.get<int64_t>() != nullptr; }
bool is_float(const Value& value) { return value.get<double>() != nullptr; }
bool is_boolean(const Value& value) { return value.get<bool>() != nullptr; }
bool is_true(const Value& value) { return value.get<bool>() && value.truthy(); }
bool is_false(const Value& value) { return value.get<bool>() && !value.truthy(); }
// As Jinja: whatever has a length and elements, undefined among them.
bool is_iterable(const Value& value) { return value.is_undefined() || value.is_string() || value.is_list() || is_mapping(value); }
bool is_callable(const Value& value) { return value.get<Value::Function>() != nullptr; }
bool is_lower(const Value& value) { const std::string text = text_of(value); return text == lower(text) && text != upper(text); }
bool is_upper(const Value& value) { const std::string text = text_of(value); return text == upper(text) && text != lower(text); }

bool leaves(const Value& value, const Value& by, int64_t rest) {
  Budget budget(1);
  return equal(arithmetic(budget, "%", value, by), Value(rest));
}
bool is_odd(const Value& value) { return leaves(value, Value(int64_t{2}), 1); }
bool is_even(const Value& value) { return leaves(value, Value(int64_t{2}), 0); }
bool is_divisible(const Value& value, const Value& by) { return leaves(value, by, 0); }

bool not_equal(const Value& a, const Value& b) { return !equal(a, b); }
bool less(const Value& a, const Value& b) { return compare(a, b) < 0; }
bool less_equal(const Value& a, const Value& b) { return compare(a, b) <= 0; }
bool greater(const Value& a, const Value& b) { return compare(a, b) > 0; }
bool greater_equal(const Value& a, const Value& b) { return compare(a, b) >= 0; }
bool is_in(const Value& item, const Value& container) { return contains(container, item); }

bool same(const Value& a, const Value& b) {
  const auto *list = a.get<Value::List>(), *other_list = b.get<Value::List>();
  const auto *dict = a.get<Value::Dict>(), *other_dict = b.get<Value::Dict>();
  if (list || other_list) return list && other_list && *list == *other_list;
  if (dict || other_dict) return dict && other_dict && *dict == *other_dict;
  return a.type() == b.type() && equal(a, b);
}

bool is_filter(const Value& value) { return find_filter(text_of(value)) != nullptr; }
bool is_test(const Value& value) { return find_test(text_of(value)) != nullptr; }

}  // namespace

Test find_test(std::string_view name) {
  static const std::map<std::string_view, Test> tests = {
      {"==", with_other<equal>}, {"boolean", plain<is_boolean>}, {"callable", plain<is_callable>},
      {"defined", plain<is_defined>}, {"divisibleby", with_other<is_divisible>}, {"eq", with_other<equal>},
      {"equalto", with_other<equal>}, {"even", plain<is_even>}, {"false", plain<is_false>}, {"filter", plain<is_filter>},
      {"float", plain<is_float>}, {"ge", with_other<greater_equal>}, {"greaterthan", with_other<greater>},
      {"gt", with_other<greater>}, {"in", with_other<is_in>}, {"integer", plain<is_integer>}, {"iterable", plain<is_iterable>},
      {"le", with_other<less_equal>}, {"lessthan", with_other<less>}, {"lower", plain<is_lower>}, {"lt", with_other<less>},
      {"mapping", plain<is_mapping>}, {"ne", with_other<not_equal>}, {"none", plain<is_none>}, {"number", plain<is_number>},
      {"odd", plain<is_odd>}, {"sameas", with_other<same>}, {"sequence", plain<is_iterable>}, {"string", plain<is_string>},
      {"test", plain<is_test>}, {"true", plain<is_true>}, {"undefined", plain<is_undefined>}, {"upper", plain<is_upper>}};
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

}  // namespace lockstep::chat
