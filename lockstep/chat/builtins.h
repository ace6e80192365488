// Filters, tests, methods and functions that templates may use: Jinja's and Python's, as far as chat templates need them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/chat/printing.h"
#include "lockstep/chat/value.h"

namespace lockstep::chat {

using Filter = Value (*)(Budget& budget, const Value& operand, const Arguments& arguments);
using Test = bool (*)(Budget& budget, const Value& operand, const Arguments& arguments);
// Null where there is none of the name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

// value.name as a bound method; undefined where the kind of value has none of the name.
Value find_method(Budget& budget, const Value& value, const std::string& name);

// The elements a loop sees, as a list: of lists, the characters of texts, the keys of dictionaries; none of undefined.
Value iterate(Budget& budget, const Value& value);
int64_t length_of(Budget& budget, const Value& value);
bool contains(Budget& budget, const Value& container, const Value& item);

// operand.name and operand[key] of data; undefined where there is none. Fails where operand is undefined.
Value attribute(Budget& budget, const Value& operand, const std::string& name);
Value item(Budget& budget, const Value& operand, const Value& key);
Value slice(Budget& budget, const Value& operand, const Value& first, const Value& last, const Value& step);

// Reads a function's arguments by position and name; finish() refuses what is left.
class ArgumentReader {
 public:
  ArgumentReader(const Arguments& arguments, std::string function) : arguments_(arguments), function_(std::move(function)) {}
  // Null where it was not given.
  const Value* next(std::string_view name);
  const Value& required(std::string_view name);
  int64_t integer(std::string_view name, int64_t otherwise);
  std::string string(std::string_view name, const std::string& otherwise);
  bool flag(std::string_view name, bool otherwise);
  void finish() const;

 private:
  const Arguments& arguments_;
  std::string function_;
  size_t position_ = 0, named_used_ = 0;
};

}  // namespace lockstep::chat
