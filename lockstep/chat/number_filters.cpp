#include "lockstep/chat/number_filters.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/chat/characters.h"

namespace lockstep::chat {
namespace {

// Python's int("12") and float("1.5"), white space at the ends and underscores allowed.
template <typename Number>
bool parse_number(const std::string& text, Number& number) {
  std::string word = strip(text, "", true, true);
  std::erase(word, '_');
  if (word.starts_with('+')) word.erase(0, 1);
  const auto read = std::from_chars(word.data(), word.data() + word.size(), number);
  return !word.empty() && read.ec == std::errc() && read.ptr == word.data() + word.size();
}

}  // namespace

Value int_filter(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "int");
  const Value* otherwise = reader.next("default");
  if (reader.integer("base", 10) != 10) fail("int: a base other than 10 is not supported");
  reader.finish();
  int64_t integer = 0;
  double number = 0;
  if (operand.is_integer()) return Value(operand.integer());
  if (operand.is_string() && parse_number(operand.string(), integer)) return Value(integer);
  const bool real = operand.get<double>() || (operand.is_string() && parse_number(operand.string(), number));
  if (operand.get<double>()) number = operand.number();
  if (real && std::abs(number) < 9.2e18) return Value(static_cast<int64_t>(number));
  return otherwise ? *otherwise : Value(int64_t{0});
}

Value float_filter(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "float");
  const Value* otherwise = reader.next("default");
  reader.finish();
  double number = 0;
  if (operand.is_number()) return Value(operand.number());
  if (operand.is_string() && parse_number(operand.string(), number)) return Value(number);
  return otherwise ? *otherwise : Value(0.0);
}

Value abs_filter(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader(arguments, "abs").finish();
  if (!operand.is_number()) fail(cat("abs of a value of type ", operand.type()));
  if (operand.get<double>()) return Value(std::abs(operand.number()));
  if (operand.integer() == std::numeric_limits<int64_t>::min()) fail("abs: a number beyond 64 bits");
  return Value(std::abs(operand.integer()));
}

Value round_filter(Budget&, const Value& operand, const Arguments& arguments) {
  ArgumentReader reader(arguments, "round");
  const int64_t precision = reader.integer("precision", 0);
  const std::string method = reader.string("method", "common");
  reader.finish();
  if (!operand.is_number()) fail(cat("round of a value of type ", operand.type()));
  if (precision != 0) fail("round: a precision other than 0 is not supported");
  if (method == "ceil") return Value(std::ceil(operand.number()));
  if (method == "floor") return Value(std::floor(operand.number()));
  if (method != "common") fail("round: 'method' is 'common', 'ceil' or 'floor'");
  if (operand.is_integer()) return Value(operand.integer());
  return Value(std::nearbyint(operand.number()));
}

}  // namespace lockstep::chat
