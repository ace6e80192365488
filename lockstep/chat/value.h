// The values of a template: Python's, as far as Jinja templates of chats see them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/json.h"

namespace lockstep::chat {

struct Sequence;
struct Mapping;
struct Callable;

struct Undefined {
  std::string name{};  // for messages
};
struct None {};

// Lists, dictionaries and functions are shared, as in Python; only a namespace changes after it was made.
class Value {
 public:
  using List = std::shared_ptr<Sequence>;
  using Dict = std::shared_ptr<Mapping>;
  using Function = std::shared_ptr<const Callable>;

  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(List list) : data_(std::move(list)) {}
  Value(Dict dict) : data_(std::move(dict)) {}
  Value(Function function) : data_(std::move(function)) {}
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value dict(std::vector<std::pair<Value, Value>> items = {});

  template <typename T>
  const T* get() const { return std::get_if<T>(&data_); }
  bool is_undefined() const { return get<Undefined>(); }
  bool is_none() const { return get<None>(); }
  bool is_string() const { return get<std::string>(); }
  bool is_list() const { return get<List>(); }
  bool is_dict() const { return get<Dict>(); }
  bool is_number() const { return get<bool>() || get<int64_t>() || get<double>(); }  // bool is an int, as in Python
  bool is_integer() const { return get<bool>() || get<int64_t>(); }
  const std::string& string() const { return std::get<std::string>(data_); }
  const std::vector<Value>& items() const;                     // of a list
  std::vector<std::pair<Value, Value>>& pairs() const;         // of a dictionary
  const Value* find(const Value& key) const;                   // in a dictionary; null = not there
  int64_t integer() const;                                     // of a bool or an int
  double number() const;                                       // of a bool, an int or a float

  bool truthy() const;
  // Python's type name: "str", "dict".
  std::string type() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string, List, Dict, Function> data_;
};

struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
};

struct Mapping {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  bool is_namespace = false;
};

struct Arguments {
  std::vector<Value> positional{};
  std::vector<std::pair<std::string, Value>> named{};
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

// A failure while a template runs, without its place, which the interpreter adds.
struct TemplateFailure {
  std::string code;  // LS1248, or LS1249 for raise_exception
  std::string what;
};
[[noreturn]] void fail(const std::string& what);

bool equal(const Value& a, const Value& b);
// Negative, zero or positive; of numbers, strings and lists. Fails for other kinds.
int compare(const Value& a, const Value& b);
std::string text_of(const Value& value);  // str(value); "" for undefined
std::string repr(const Value& value);     // as inside a printed list
std::string float_text(double value);     // Python's repr of a float

Value from_json(const OrderedJson& json);
struct JsonStyle {
  int indent = -1;  // -1: one line
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator{};  // empty: json.dumps' own
  std::string key_separator{};
};
// json.dumps(value, ensure_ascii=ascii).
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace lockstep::chat
