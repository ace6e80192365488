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

template <bool (*kHolds)(Budget&, const Value&, const Value&)>
bool with_other(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "a test");
  const Value& other = reader.required("other");
  reader.finish();
  return kHolds(budget, operand, other);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return (value.is_dict() && !value.is_namespace()); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_integer(const Value& value) { return value.get<int64_t>() != nullptr; }
bool is_float(const Value& value) { return value.get<double>() != nullptr; }
bool is_boolean(const Value& value) { return value.get<bool>() != nullptr; }
bool is_true(const Value& value) { return value.get<bool>() && value.truthy(); }
bool is_false(const Value& value) { return value.get<bool>() && !value.truthy(); }
// As Jinja: whatever has a length and elements, undefined among them.
bool is_iterable(const Value& value) { return value.is_undefined() || value.is_string() || value.is_list() || is_mapping(value); }
bool is_callable(const Value& value) { return value.get<Value::Function>() != nullptr; }

bool leaves(Budget& budget, const Value& value, const Value& by, int64_t rest) {
  return equal(budget, arithmetic(budget, "%", value, by), Value(rest));
}
template <int64_t kRest>
bool halves(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "a test").finish();
  return leaves(budget, operand, Value(int64_t{2}), kRest);
}
bool is_divisible(Budget& budget, const Value& value, const Value& by) { return leaves(budget, value, by, 0); }

bool not_equal(Budget& budget, const Value& a, const Value& b) { return !equal(budget, a, b); }
bool less(Budget& budget, const Value& a, const Value& b) { return compare(budget, a, b) < 0; }
bool less_equal(Budget& budget, const Value& a, const Value& b) { return compare(budget, a, b) <= 0; }
bool greater(Budget& budget, const Value& a, const Value& b) { return compare(budget, a, b) > 0; }
bool greater_equal(Budget& budget, const Value& a, const Value& b) { return compare(budget, a, b) >= 0; }
bool is_in(Budget& budget, const Value& item, const Value& container) { return contains(budget, container, item); }

bool same(Budget& budget, const Value& a, const Value& b) {
  const auto *list = a.get<Value::List>(), *other_list = b.get<Value::List>();
  const auto *dict = a.get<Value::Dict>(), *other_dict = b.get<Value::Dict>();
  if (list || other_list) return list && other_list && *list == *other_list;
  if (dict || other_dict) return dict && other_dict && *dict == *other_dict;
  return a.type() == b.type() && equal(budget, a, b);
}

template <bool kUpper>
bool is_case(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "a test").finish();
  const std::string text = text_of(budget, operand);
  budget.spend(static_cast<int64_t>(text.size()));
  const std::string low = lower(text), up = upper(text);
  return text == (kUpper ? up : low) && text != (kUpper ? low : up);
}

template <auto kFind>
bool is_known(Budget& budget, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "a test").finish();
  return kFind(text_of(budget, operand)) != nullptr;
}

}  // namespace

Test find_test(std::string_view name) {
  static const std::map<std::string_view, Test> tests = {
      {"==", with_other<equal>}, {"boolean", plain<is_boolean>}, {"callable", plain<is_callable>},
      {"defined", plain<is_defined>}, {"divisibleby", with_other<is_divisible>}, {"eq", with_other<equal>},
      {"equalto", with_other<equal>}, {"even", halves<0>}, {"false", plain<is_false>}, {"filter", is_known<find_filter>},
      {"float", plain<is_float>}, {"ge", with_other<greater_equal>}, {"greaterthan", with_other<greater>},
      {"gt", with_other<greater>}, {"in", with_other<is_in>}, {"integer", plain<is_integer>}, {"iterable", plain<is_iterable>},
      {"le", with_other<less_equal>}, {"lessthan", with_other<less>}, {"lower", is_case<false>}, {"lt", with_other<less>},
      {"mapping", plain<is_mapping>}, {"ne", with_other<not_equal>}, {"none", plain<is_none>}, {"number", plain<is_number>},
      {"odd", halves<1>}, {"sameas", with_other<same>}, {"sequence", plain<is_iterable>}, {"string", plain<is_string>},
      {"test", is_known<find_test>}, {"true", plain<is_true>}, {"undefined", plain<is_undefined>}, {"upper", is_case<true>}};
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

}  // namespace lockstep::chat
