// The functions that templates call by name.
#include <ctime>

#include "lockstep/base/text.h"
#include "lockstep/chat/interpreter.h"

namespace lockstep::chat {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as Jinja's sandbox

Value range(Budget& budget, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) fail("range needs 1 to 3 integers");
  for (const Value& value : given) {
    if (!value.is_integer()) fail(cat("range of a value of type ", value.type()));
  }
  const int64_t first = given.size() > 1 ? given[0].integer() : 0, last = given[given.size() > 1].integer();
  const int64_t step = given.size() > 2 ? given[2].integer() : 1;
  if (step == 0) fail("range in steps of 0");
  std::vector<Value> items;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    if (static_cast<int64_t>(items.size()) == kLongestRange)
      throw TemplateFailure{"LS1250", cat("range: more than ", kLongestRange, " elements")};
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return budget.list(std::move(items));
}

Value dict(Budget& budget, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) fail("dict takes one dictionary and named values");
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_dict()) fail("dict of something that is no dictionary");
    items = arguments.positional[0].pairs();
  }
  for (const auto& [name, value] : arguments.named) {
    std::erase_if(items, [&](const auto& pair) {
      budget.spend(1);
      return pair.first.is_string() && pair.first.string() == name;
    });
    items.emplace_back(budget.text(name), value);
  }
  return budget.dict(std::move(items));
}

Value raise_exception(Budget& budget, const Arguments& arguments) {
  throw TemplateFailure{"LS1249", cat("the chat template refuses this conversation: ",
                                      arguments.positional.empty() ? "" : text_of(budget, arguments.positional[0]))};
}

}  // namespace

void Interpreter::add_functions(Scope& scope) {
  const auto add = [&](const char* name, std::function<Value(const Arguments&)> function) {
    scope.set(name, budget_.function(name, std::move(function), {}));
  };
  add("range", [this](const Arguments& arguments) { return range(budget_, arguments); });
  add("dict", [this](const Arguments& arguments) { return dict(budget_, arguments); });
  add("namespace", [this](const Arguments& arguments) {
    Value result = dict(budget_, arguments);
    (*result.get<Value::Dict>())->is_namespace = true;
    namespaces_.push_back(result);
    return result;
  });
  add("raise_exception", [this](const Arguments& arguments) { return raise_exception(budget_, arguments); });
  add("strftime_now", [this](const Arguments& arguments) {
    ArgumentReader reader(arguments, "strftime_now");
    const std::string format = reader.string("format", "");
    reader.finish();
    std::tm local{};
    localtime_r(&now_, &local);
    char text[512];
    if (format.size() > 100) fail("strftime_now: a format of more than 100 characters");
    return budget_.text(std::string(text, std::strftime(text, sizeof text, format.c_str(), &local)));
  });
}

}  // namespace lockstep::chat
