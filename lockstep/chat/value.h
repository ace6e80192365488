// The values of a template: Python's, as far as Jinja templates of chats see them. Budget makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/chat/budget.h"

namespace lockstep::chat {

struct Text;
struct Sequence;
struct Mapping;
struct Callable;

struct Undefined {
  std::shared_ptr<const Text> name{};  // for messages
};
struct None {};

// Texts, lists, dictionaries and functions are shared, as in Python; only a namespace changes after it was made.
class Value {
 public:
  using String = std::shared_ptr<const Text>;
  using List = std::shared_ptr<const Sequence>;
  using Dict = std::shared_ptr<Mapping>;
  using Function = std::shared_ptr<const Callable>;

  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(String text) : data_(std::move(text)) {}
  Value(List list) : data_(std::move(list)) {}
  Value(Dict dict) : data_(std::move(dict)) {}
  Value(Function function) : data_(std::move(function)) {}
  Value(const char*) = delete;  // no bool
  // A text that no budget pays for: of the template's source, which is bounded.
  static Value literal(std::string text);

  template <typename T>
  const T* get() const { return std::get_if<T>(&data_); }
  bool is_undefined() const { return get<Undefined>(); }
  bool is_none() const { return get<None>(); }
  bool is_string() const { return get<String>(); }
  bool is_list() const { return get<List>(); }
  bool is_dict() const { return get<Dict>(); }      // or a namespace
  bool is_namespace() const;
  bool is_number() const { return get<bool>() || get<int64_t>() || get<double>(); }  // bool is an int, as in Python
  bool is_integer() const { return get<bool>() || get<int64_t>(); }
  const std::string& string() const;
  const std::vector<Value>& items() const;                     // of a list
  const std::vector<std::pair<Value, Value>>& pairs() const;   // of a dictionary
  int64_t integer() const;                                     // of a bool or an int
  double number() const;                                       // of a bool, an int or a float
  std::string_view undefined_name() const;                     // of an undefined value

  // How many lists, dictionaries and functions lie inside each other. A namespace counts as one, whatever it holds: it may
  // come to hold itself. So nothing may follow namespaces without a bound of its own.
  int depth() const;
  bool truthy() const;
  // Python's type name: "str", "dict".
  std::string type() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, String, List, Dict, Function> data_;
};

struct Text {
  std::string value;
  Charge charge{};
};

struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  Charge charge{};
};

struct Mapping {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  bool is_namespace = false;
  int depth = 1;
  Charge charge{};
};

struct Arguments {
  std::vector<Value> positional{};
  std::vector<std::pair<std::string, Value>> named{};
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int depth = 1;
  Charge charge{};
};

// A namespace is equal to itself alone, as in Jinja.
bool equal(Budget& budget, const Value& a, const Value& b);
// Negative, zero or positive; of numbers, strings and lists. Fails for other kinds.
int compare(Budget& budget, const Value& a, const Value& b);
// What a dictionary has for the key; null = nothing.
const Value* find(Budget& budget, const Value& dict, const Value& key);
const Value* find(Budget& budget, const Value& dict, std::string_view key);

Value from_json(Budget& budget, const OrderedJson& json, int depth = 0);

}  // namespace lockstep::chat
