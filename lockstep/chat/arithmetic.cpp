#include "lockstep/chat/arithmetic.h"

#include <cmath>

#include "lockstep/base/text.h"

namespace lockstep::chat {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); }

double floor_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) return rest + b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Value integers(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "//" || op == "%") {
    if (b == -1) {
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      result = op == "//" ? floor_div(a, b) : floor_mod(a, b);
    }
  } else {  // **, b >= 0
    result = 1;
    for (int64_t i = 0; i < b && !overflow; ++i) {
      if (a == 0 || a == 1) { result = b == 0 ? 1 : a; break; }
      if (a == -1) { result = b % 2 == 0 ? 1 : -1; break; }
      overflow = __builtin_mul_overflow(result, a, &result);
    }
  }
  if (overflow) fail(cat(a, " ", op, " ", b, " is beyond 64 bits"));
  return Value(result);
}

Value numbers(const std::string& op, const Value& a, const Value& b) {
  if ((op == "/" || op == "//" || op == "%") && b.number() == 0) fail("a division by zero");
  const bool whole = a.is_integer() && b.is_integer();
  if (whole && op != "/" && !(op == "**" && b.integer() < 0)) return integers(op, a.integer(), b.integer());
  const double x = a.number(), y = b.number();
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (op == "/") return Value(x / y);
  if (op == "//") return Value(std::floor((x - floor_mod(x, y)) / y + 0.5));
  if (op == "%") return Value(floor_mod(x, y));
  if (x == 0 && y < 0) fail("zero to a negative power");
  if (x < 0 && y != std::floor(y)) fail("a root of a negative number");
  return Value(std::pow(x, y));
}

Value repeated(Budget& budget, const Value& what, int64_t times) {
  const bool text = what.is_string();
  const auto size = static_cast<int64_t>(text ? what.string().size() : what.items().size() * sizeof(Value));
  times = size == 0 ? 0 : std::max<int64_t>(0, times);
  if (times > 0 && size > (text ? budget.limits().text_bytes : budget.limits().memory_bytes) / times)
    throw TemplateFailure{"LS1250", cat(times, " times a value of ", size, " bytes")};
  if (text) {
    TextBuilder out(budget);
    for (int64_t i = 0; i < times; ++i) out.add(what.string());
    return budget.text(out.take());
  }
  budget.room(size * times);
  std::vector<Value> items;
  items.reserve(what.items().size() * static_cast<size_t>(times));
  for (int64_t i = 0; i < times; ++i) items.insert(items.end(), what.items().begin(), what.items().end());
  return budget.list(std::move(items), what.type() == "tuple");
}

Value joined(Budget& budget, const Value& a, const Value& b) {
  const size_t size = a.items().size() + b.items().size();
  budget.room(static_cast<int64_t>(size * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(size);
  items.insert(items.end(), a.items().begin(), a.items().end());
  items.insert(items.end(), b.items().begin(), b.items().end());
  return budget.list(std::move(items), a.type() == "tuple");
}

}  // namespace

Value negative(const Value& value) {
  if (value.get<double>()) return Value(-value.number());
  if (value.is_integer()) return integers("-", 0, value.integer());
  fail(cat("- of a value of type ", value.type()));
}

Value arithmetic(Budget& budget, const std::string& op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return numbers(op, a, b);
  if (op == "+" && a.is_string() && b.is_string()) return budget.text(TextBuilder(budget).add(a.string()).add(b.string()).take());
  if (op == "+" && a.is_list() && a.type() == b.type()) return joined(budget, a, b);
  if (op == "*" && (a.is_string() || a.is_list()) && b.is_integer()) return repeated(budget, a, b.integer());
  if (op == "*" && (b.is_string() || b.is_list()) && a.is_integer()) return repeated(budget, b, a.integer());
  if (op == "%" && a.is_string()) fail("formatting a text with % is not supported");
  const auto named = [](const Value& value) {
    return value.is_undefined() ? cat("undefined ('", value.undefined_name(), "')") : value.type();
  };
  fail(cat("'", op, "' of ", named(a), " and ", named(b)));
}

}  // namespace lockstep::chat
