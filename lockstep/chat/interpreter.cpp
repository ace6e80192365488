#include "lockstep/chat/interpreter.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/arithmetic.h"

namespace lockstep::chat {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepestCalls = 40;

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope; scope = scope->around_.get()) {
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return &found->second;
  }
  return nullptr;
}

Interpreter::Interpreter(const std::string& origin, const RenderLimits& limits, std::time_t now)
    : origin_(origin), limits_(limits), budget_(limits.steps), now_(now) {}

std::string Interpreter::run(const Body& body, const Value& variables) {
  auto functions = std::make_shared<Scope>();
  add_functions(*functions);
  auto scope = std::make_shared<Scope>(functions);
  for (const auto& [key, value] : variables.pairs()) scope->set(text_of(key), value);
  try {
    execute(body, scope);
  } catch (const TemplateFailure& failure) {
    throw DataError({.code = failure.code, .what = failure.what, .where = cat(origin_, ":", line_)});
  }
  return std::move(out_);
}

void Interpreter::write(const std::string& text) {
  if (out_.size() + text.size() > limits_.output_bytes)
    throw TemplateFailure{"LS1250", cat("the template writes more than ", limits_.output_bytes, " bytes")};
  out_ += text;
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope) {
  for (const auto& s : body) {
    if (const Flow flow = statement(*s, scope); flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::statement(const Statement& s, const ScopePtr& scope) {
  line_ = s.line;
  budget_.spend(1);
  switch (s.kind) {
    case Statement::Kind::kText: write(s.text); break;
    case Statement::Kind::kOutput: write(text_of(evaluate(*s.expression, scope))); break;
    case Statement::Kind::kFor: return loop(s, scope);
    case Statement::Kind::kIf: return execute(evaluate(*s.expression, scope).truthy() ? s.body : s.otherwise, scope);
    case Statement::Kind::kSet: assign(s, scope); break;
    case Statement::Kind::kSetBlock: {
      const std::string text = captured(s.body, std::make_shared<Scope>(scope));
      Value value = s.expression ? through_filters(*s.expression, text, scope) : Value(text);
      if (s.attribute.empty()) {
        scope->set(s.targets[0], std::move(value));
      } else {
        fail("{% set %} of a block to an attribute is not supported");
      }
      break;
    }
    case Statement::Kind::kMacro: scope->set(s.text, macro(s, scope)); break;
    case Statement::Kind::kFilter:
      write(text_of(through_filters(*s.expression, captured(s.body, std::make_shared<Scope>(scope)), scope)));
      break;
    case Statement::Kind::kWith: {
      auto inner = std::make_shared<Scope>(scope);
      for (size_t i = 0; i < s.targets.size(); ++i) inner->set(s.targets[i], evaluate(*s.defaults[i], scope));
      return execute(s.body, inner);
    }
    case Statement::Kind::kScope: execute(s.body, std::make_shared<Scope>(scope)); break;
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

std::string Interpreter::captured(const Body& body, const ScopePtr& scope) {
  std::string outer = std::exchange(out_, {});
  execute(body, scope);
  return std::exchange(out_, std::move(outer));
}

Value Interpreter::through_filters(const Expression& filters, const std::string& text, const ScopePtr& scope) {
  const Value operand = filters.operands[0] ? through_filters(*filters.operands[0], text, scope) : Value(text);
  return filtered(filters, operand, scope);
}

void Interpreter::bind(const std::vector<std::string>& targets, const Value& value, const ScopePtr& scope) {
  if (targets.size() == 1) return scope->set(targets[0], value);
  const std::vector<Value> parts = iterate(budget_, value);
  if (parts.size() != targets.size())
    fail(cat(parts.size(), " values for the ", targets.size(), " variables ", join(targets, ", ")));
  for (size_t i = 0; i < targets.size(); ++i) scope->set(targets[i], parts[i]);
}

void Interpreter::assign(const Statement& s, const ScopePtr& scope) {
  Value value = evaluate(*s.expression, scope);
  if (s.attribute.empty()) return bind(s.targets, value, scope);
  const Value* object = scope->find(s.targets[0]);
  if (!object || object->type() != "namespace") fail(cat("{% set ", s.targets[0], ".", s.attribute, " %}: no namespace"));
  if (s.attribute.starts_with('_')) fail("an attribute of a namespace that begins with _");
  for (auto& [key, held] : object->pairs()) {
    if (key.string() == s.attribute) {
      held = std::move(value);
      return;
    }
  }
  object->pairs().emplace_back(Value(s.attribute), std::move(value));
}

Interpreter::Flow Interpreter::loop(const Statement& s, const ScopePtr& scope) {
  std::vector<Value> items = iterate(budget_, evaluate(*s.expression, scope));
  if (s.condition) {
    std::vector<Value> wanted;
    for (const Value& value : items) {
      auto inner = std::make_shared<Scope>(scope);
      bind(s.targets, value, inner);
      if (evaluate(*s.condition, inner).truthy()) wanted.push_back(value);
    }
    items = std::move(wanted);
  }
  const auto count = static_cast<int64_t>(items.size());
  auto changed = std::make_shared<std::pair<bool, Value>>(false, Value());
  for (int64_t i = 0; i < count; ++i) {
    auto inner = std::make_shared<Scope>(scope);
    const auto at = static_cast<size_t>(i);
    const Value cycle(std::make_shared<const Callable>(Callable{.name = "cycle", .call = [i](const Arguments& arguments) {
      if (arguments.positional.empty()) fail("loop.cycle needs values");
      return arguments.positional[static_cast<size_t>(i) % arguments.positional.size()];
    }}));
    const Value has_changed(std::make_shared<const Callable>(Callable{.name = "changed", .call = [changed](const Arguments& arguments) {
      const Value now = Value::list(arguments.positional);
      const bool differs = !changed->first || !equal(changed->second, now);
      *changed = {true, now};
      return Value(differs);
    }}));
    inner->set("loop", Value::dict({{"index", i + 1}, {"index0", i}, {"revindex", count - i}, {"revindex0", count - i - 1},
                                    {"first", i == 0}, {"last", i + 1 == count}, {"length", count},
                                    {"depth", int64_t{1}}, {"depth0", int64_t{0}}, {"cycle", cycle}, {"changed", has_changed},
                                    {"previtem", i > 0 ? items[at - 1] : Value(Undefined{"loop.previtem"})},
                                    {"nextitem", i + 1 < count ? items[at + 1] : Value(Undefined{"loop.nextitem"})}}));
    bind(s.targets, items[at], inner);
    if (execute(s.body, inner) == Flow::kBreak) break;
  }
  return count == 0 ? execute(s.otherwise, std::make_shared<Scope>(scope)) : Flow::kOn;
}

Value Interpreter::macro(const Statement& s, const ScopePtr& scope) {
  // A weak reference: the scope holds the macro.
  return Value(std::make_shared<const Callable>(
      Callable{.name = s.text, .call = [this, &s, around = std::weak_ptr<Scope>(scope)](const Arguments& arguments) {
                 const ScopePtr scope = around.lock();
                 if (!scope) fail(cat("the macro '", s.text, "' is called outside of where it stands"));
                 return call_macro(s, scope, arguments);
               }}));
}

Value Interpreter::call_macro(const Statement& s, const ScopePtr& scope, const Arguments& arguments) {
  if (++calls_ > kDeepestCalls) throw TemplateFailure{"LS1250", cat("macros call each other deeper than ", kDeepestCalls)};
  auto inner = std::make_shared<Scope>(scope);
  ArgumentReader reader(arguments, s.text);
  const size_t without_default = s.targets.size() - s.defaults.size();
  for (size_t i = 0; i < s.targets.size(); ++i) {
    const Value* given = reader.next(s.targets[i]);
    inner->set(s.targets[i], given                  ? *given
                             : i >= without_default ? evaluate(*s.defaults[i - without_default], inner)
                                                    : Value(Undefined{s.targets[i]}));
  }
  reader.finish();
  const int line = line_;
  Value result(captured(s.body, inner));
  line_ = line;
  --calls_;
  return result;
}

Arguments Interpreter::arguments(const Expression& e, const ScopePtr& scope) {
  Arguments arguments;
  for (const auto& [name, value] : e.arguments) {
    if (name.empty())
      arguments.positional.push_back(evaluate(*value, scope));
    else
      arguments.named.emplace_back(name, evaluate(*value, scope));
  }
  return arguments;
}

Value Interpreter::filtered(const Expression& e, const Value& operand, const ScopePtr& scope) {
  return find_filter(e.name)(budget_, operand, arguments(e, scope));
}

Value Interpreter::call(const Expression& e, const ScopePtr& scope) {
  const Value function = evaluate(*e.operands[0], scope);
  const Arguments values = arguments(e, scope);
  if (const auto* callable = function.get<Value::Function>()) return (*callable)->call(values);
  if (function.is_undefined()) fail(cat("'", function.get<Undefined>()->name, "' is undefined and cannot be called"));
  fail(cat("a value of type ", function.type(), " cannot be called"));
}

Value Interpreter::comparison(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.operands[0], scope);
  for (size_t i = 0; i < e.comparisons.size(); ++i) {
    Value right = evaluate(*e.operands[i + 1], scope);
    const std::string& op = e.comparisons[i];
    const bool holds = op == "==" ? equal(left, right) : op == "!=" ? !equal(left, right)
                     : op == "in" ? contains(right, left) : op == "not in" ? !contains(right, left)
                     : op == "<"  ? compare(left, right) < 0 : op == "<=" ? compare(left, right) <= 0
                     : op == ">"  ? compare(left, right) > 0 : compare(left, right) >= 0;
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  budget_.spend(1);
  line_ = e.line;
  Value value = evaluate_kind(e, scope);
  line_ = e.line;
  return value;
}

Value Interpreter::evaluate_kind(const Expression& e, const ScopePtr& scope) {
  const auto operand = [&](size_t i) { return e.operands[i] ? evaluate(*e.operands[i], scope) : Value(None{}); };
  const auto operands = [&] {
    std::vector<Value> values;
    for (size_t i = 0; i < e.operands.size(); ++i) values.push_back(operand(i));
    return values;
  };
  switch (e.kind) {
    case Kind::kLiteral: return e.value;
    case Kind::kName: {
      const Value* found = scope->find(e.name);
      return found ? *found : Value(Undefined{e.name});
    }
    case Kind::kList: return Value::list(operands());
    case Kind::kTuple: return Value::list(operands(), true);
    case Kind::kDict: {
      Value dict = Value::dict();
      for (size_t i = 0; i < e.operands.size(); i += 2) {
        const Value key = operand(i);
        if (!key.is_string() && !key.is_number() && !key.is_none()) fail(cat("a key of type ", key.type()));
        Value value = operand(i + 1);
        if (const Value* found = dict.find(key))
          const_cast<Value&>(*found) = std::move(value);
        else
          dict.pairs().emplace_back(key, std::move(value));
      }
      return dict;
    }
    case Kind::kAttribute: return attribute(budget_, operand(0), e.name);
    case Kind::kItem: return item(budget_, operand(0), operand(1));
    case Kind::kSlice: return slice(operand(0), operand(1), operand(2), operand(3));
    case Kind::kCall: return call(e, scope);
    case Kind::kFilter: return filtered(e, operand(0), scope);
    case Kind::kTest: return Value(find_test(e.name)(budget_, operand(0), arguments(e, scope)));
    case Kind::kNot: return Value(!operand(0).truthy());
    case Kind::kNegative: return negative(operand(0));
    case Kind::kPositive: {
      Value value = operand(0);
      if (!value.is_number()) fail(cat("+ of a value of type ", value.type()));
      return value.get<bool>() ? Value(value.integer()) : value;
    }
    case Kind::kBinary: {
      const Value left = operand(0);
      return arithmetic(budget_, e.name, left, operand(1));
    }
    case Kind::kCompare: return comparison(e, scope);
    case Kind::kAnd:
    case Kind::kOr: {
      for (size_t i = 0;; ++i) {
        Value value = operand(i);
        if (i + 1 == e.operands.size() || value.truthy() == (e.kind == Kind::kOr)) return value;
      }
    }
    case Kind::kConditional:
      if (operand(1).truthy()) return operand(0);
      return e.operands[2] ? operand(2) : Value(Undefined{"a condition without else"});
  }
  return {};
}

}  // namespace lockstep::chat
