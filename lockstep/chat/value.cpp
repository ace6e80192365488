#include "lockstep/chat/value.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::chat {

Value Value::literal(std::string text) { return Value(std::make_shared<const Text>(Text{.value = std::move(text)})); }

bool Value::is_namespace() const {
  const Dict* dict = get<Dict>();
  return dict && (*dict)->is_namespace;
}

const std::string& Value::string() const { return std::get<String>(data_)->value; }
const std::vector<Value>& Value::items() const { return std::get<List>(data_)->items; }
const std::vector<std::pair<Value, Value>>& Value::pairs() const { return std::get<Dict>(data_)->items; }

std::string_view Value::undefined_name() const {
  const auto& name = std::get<Undefined>(data_).name;
  return name ? std::string_view(name->value) : std::string_view();
}

int64_t Value::integer() const {
  const bool* flag = get<bool>();
  return flag ? *flag : std::get<int64_t>(data_);
}

double Value::number() const {
  const double* real = get<double>();
  return real ? *real : static_cast<double>(integer());
}

int Value::depth() const {
  if (const List* list = get<List>()) return (*list)->depth;
  if (const Dict* dict = get<Dict>()) return (*dict)->is_namespace ? 1 : (*dict)->depth;
  if (const Function* function = get<Function>()) return (*function)->depth;
  return 0;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !items().empty();
  if (is_dict()) return is_namespace() || !pairs().empty();
  return true;
}

std::string Value::type() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "NoneType";
  if (get<bool>()) return "bool";
  if (get<int64_t>()) return "int";
  if (get<double>()) return "float";
  if (is_string()) return "str";
  if (const List* list = get<List>()) return (*list)->tuple ? "tuple" : "list";
  if (is_dict()) return is_namespace() ? "namespace" : "dict";
  return "function";
}

namespace {

bool equal_texts(Budget& budget, std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  budget.spend(static_cast<int64_t>(a.size()) / 64);
  return a == b;
}

bool equal_dicts(Budget& budget, const Value& a, const Value& b) {
  if (a.is_namespace() || b.is_namespace()) return *a.get<Value::Dict>() == *b.get<Value::Dict>();
  if (a.pairs().size() != b.pairs().size()) return false;
  return std::all_of(a.pairs().begin(), a.pairs().end(), [&](const auto& pair) {
    const Value* other = find(budget, b, pair.first);
    return other && equal(budget, pair.second, *other);
  });
}

}  // namespace

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) return equal_texts(budget, a.string(), b.string());
  if (a.is_list() && b.is_list()) {
    return (*a.get<Value::List>())->tuple == (*b.get<Value::List>())->tuple &&
           std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      [&](const Value& x, const Value& y) { return equal(budget, x, y); });
  }
  if (a.is_dict() && b.is_dict()) return equal_dicts(budget, a, b);
  if (const auto* function = a.get<Value::Function>()) return b.get<Value::Function>() && *function == *b.get<Value::Function>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(Budget& budget, const Value& a, const Value& b) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is_string() && b.is_string()) {
    budget.spend(static_cast<int64_t>(std::min(a.string().size(), b.string().size())) / 64);
    return a.string().compare(b.string());  // UTF-8 sorts as code points do
  }
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (!equal(budget, a.items()[i], b.items()[i])) return compare(budget, a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  fail(cat("values of type ", a.type(), " and ", b.type(), " have no order"));
}

const Value* find(Budget& budget, const Value& dict, const Value& key) {
  for (const auto& [name, value] : dict.pairs()) {
    if (equal(budget, name, key)) return &value;
  }
  return nullptr;
}

const Value* find(Budget& budget, const Value& dict, std::string_view key) {
  for (const auto& [name, value] : dict.pairs()) {
    budget.spend(1);
    if (name.is_string() && equal_texts(budget, name.string(), key)) return &value;
  }
  return nullptr;
}

Value from_json(Budget& budget, const OrderedJson& json, int depth) {
  budget.check_depth(depth);
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer: return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: return Value(static_cast<int64_t>(json.get<uint64_t>()));
    case OrderedJson::value_t::number_float: return Value(json.get<double>());
    case OrderedJson::value_t::string: return budget.text(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(from_json(budget, item, depth + 1));
      return budget.list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(budget.text(key), from_json(budget, item, depth + 1));
      return budget.dict(std::move(items));
    }
    default: return Value(None{});
  }
}

}  // namespace lockstep::chat
