#include "lockstep/chat/interpreter.h"

#include <algorithm>
#include <array>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/arithmetic.h"

namespace lockstep::chat {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepestCalls = 40;
constexpr std::array kLoopKeys = {"index", "index0", "revindex", "revindex0", "first", "last", "length",
                                  "depth", "depth0", "cycle",    "changed",   "previtem", "nextitem"};

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope; scope = scope->around_.get()) {
    budget_.spend(1);
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return &found->second;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  const auto [place, added] = values_.try_emplace(name);
  if (added) {
    constexpr int64_t kNode = 64;
    charge_.add(budget_, kNode + static_cast<int64_t>(sizeof(*place) + name.size()));
  }
  place->second = std::move(value);
}

Interpreter::Interpreter(const std::string& origin, const RenderLimits& limits, std::time_t now)
    : origin_(origin), budget_(limits), now_(now) {}

Interpreter::~Interpreter() {
  for (const Value& value : namespaces_) (*value.get<Value::Dict>())->items.clear();
}

std::string Interpreter::run(const Body& body, const OrderedJson& variables) {
  try {
    for (const char* key : kLoopKeys) loop_keys_.push_back(budget_.text(key));
    auto functions = std::make_shared<Scope>(budget_);
    add_functions(*functions);
    const ScopePtr scope = inside(functions);
    for (const auto& [key, value] : variables.items()) scope->set(key, from_json(budget_, value));
    execute(body, scope);
  } catch (const TemplateFailure& failure) {
    throw DataError({.code = failure.code, .what = shortened(failure.what, 2000), .where = cat(origin_, ":", line_)});
  }
  return std::move(out_);
}

void Interpreter::write(const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  if (pending_ + size > budget_.limits().output_bytes)
    throw TemplateFailure{"LS1250", cat("the template writes more than ", budget_.limits().output_bytes, " bytes")};
  budget_.spend(size / 16);
  pending_ += size;
  out_ += text;
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope) {
  for (const auto& s : body) {
    if (const Flow flow = statement(*s, scope); flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::statement(const Statement& s, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  line_ = s.line;
  budget_.spend(1);
  switch (s.kind) {
    case Statement::Kind::kText: write(s.text); break;
    case Statement::Kind::kOutput: write(text_of(budget_, evaluate(*s.expression, scope))); break;
    case Statement::Kind::kFor: return loop(s, scope);
    case Statement::Kind::kIf: return execute(evaluate(*s.expression, scope).truthy() ? s.body : s.otherwise, scope);
    case Statement::Kind::kSet: assign(s, scope); break;
    case Statement::Kind::kSetBlock: {
      const Value text = captured(s.body, inside(scope));
      Value value = s.expression ? through_filters(*s.expression, text, scope) : text;
      if (s.attribute.empty()) {
        scope->set(s.targets[0], std::move(value));
      } else {
        fail("{% set %} of a block to an attribute is not supported");
      }
      break;
    }
    case Statement::Kind::kMacro: scope->set(s.text, macro(s, scope)); break;
    case Statement::Kind::kFilter:
      write(text_of(budget_, through_filters(*s.expression, captured(s.body, inside(scope)), scope)));
      break;
    case Statement::Kind::kWith: {
      const ScopePtr inner = inside(scope);
      for (size_t i = 0; i < s.targets.size(); ++i) inner->set(s.targets[i], evaluate(*s.defaults[i], scope));
      return execute(s.body, inner);
    }
    case Statement::Kind::kScope: execute(s.body, inside(scope)); break;
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

Value Interpreter::captured(const Body& body, const ScopePtr& scope) {
  std::string outer = std::exchange(out_, {});
  execute(body, scope);
  std::string text = std::exchange(out_, std::move(outer));
  pending_ -= static_cast<int64_t>(text.size());
  return budget_.text(std::move(text));
}

Value Interpreter::through_filters(const Expression& filters, const Value& text, const ScopePtr& scope) {
  const Value operand = filters.operands[0] ? through_filters(*filters.operands[0], text, scope) : text;
  return filtered(filters, operand, scope);
}

void Interpreter::bind(const std::vector<std::string>& targets, const Value& value, const ScopePtr& scope) {
  if (targets.size() == 1) return scope->set(targets[0], value);
  const Value list = iterate(budget_, value);
  const std::vector<Value>& parts = list.items();
  if (parts.size() != targets.size())
    fail(cat(parts.size(), " values for the ", targets.size(), " variables ", join(targets, ", ")));
  for (size_t i = 0; i < targets.size(); ++i) scope->set(targets[i], parts[i]);
}

void Interpreter::assign(const Statement& s, const ScopePtr& scope) {
  Value value = evaluate(*s.expression, scope);
  if (s.attribute.empty()) return bind(s.targets, value, scope);
  const Value* object = scope->find(s.targets[0]);
  if (!object || !object->is_namespace()) fail(cat("{% set ", s.targets[0], ".", s.attribute, " %}: no namespace"));
  if (s.attribute.starts_with('_')) fail("an attribute of a namespace that begins with _");
  Mapping& content = **object->get<Value::Dict>();
  for (auto& [key, held] : content.items) {
    budget_.spend(1);
    if (key.is_string() && key.string() == s.attribute) {
      held = std::move(value);
      return;
    }
  }
  content.charge.add(budget_, static_cast<int64_t>(2 * sizeof(content.items[0])));
  content.items.emplace_back(budget_.text(s.attribute), std::move(value));
}

// What a template sees as `loop`.
Value Interpreter::loop_object(const std::vector<Value>& items, size_t at, const Value& changed) {
  const auto i = static_cast<int64_t>(at), count = static_cast<int64_t>(items.size());
  Value cycle = budget_.function("cycle", [at](const Arguments& arguments) {
    if (arguments.positional.empty()) fail("loop.cycle needs values");
    return arguments.positional[at % arguments.positional.size()];
  }, {});
  std::array<Value, kLoopKeys.size()> values = {i + 1, i, count - i, count - i - 1, i == 0, i + 1 == count, count,
                                                int64_t{1}, int64_t{0}, std::move(cycle), changed,
                                                i > 0 ? items[at - 1] : budget_.undefined("loop.previtem"),
                                                i + 1 < count ? items[at + 1] : budget_.undefined("loop.nextitem")};
  std::vector<std::pair<Value, Value>> pairs;
  pairs.reserve(values.size());
  for (size_t k = 0; k < values.size(); ++k) pairs.emplace_back(loop_keys_[k], std::move(values[k]));
  return budget_.dict(std::move(pairs));
}

Interpreter::Flow Interpreter::loop(const Statement& s, const ScopePtr& scope) {
  Value list = iterate(budget_, evaluate(*s.expression, scope));
  if (s.condition) {
    std::vector<Value> wanted;
    for (const Value& value : list.items()) {
      const ScopePtr inner = inside(scope);
      bind(s.targets, value, inner);
      if (evaluate(*s.condition, inner).truthy()) wanted.push_back(value);
    }
    list = budget_.list(std::move(wanted));
  }
  const std::vector<Value>& items = list.items();
  const auto seen = std::make_shared<std::optional<Value>>();
  // A weak reference: what was seen may hold the loop.
  const Value changed = budget_.function("changed", [this, weak = std::weak_ptr(seen)](const Arguments& arguments) {
    const auto before = weak.lock();
    if (!before) fail("loop.changed is called outside of its loop");
    const Value now = budget_.list(arguments.positional);
    const bool differs = !*before || !equal(budget_, **before, now);
    *before = now;
    return Value(differs);
  }, {});
  for (size_t at = 0; at < items.size(); ++at) {
    const ScopePtr inner = inside(scope);
    inner->set("loop", loop_object(items, at, changed));
    bind(s.targets, items[at], inner);
    if (execute(s.body, inner) == Flow::kBreak) break;
  }
  return items.empty() ? execute(s.otherwise, inside(scope)) : Flow::kOn;
}

Value Interpreter::macro(const Statement& s, const ScopePtr& scope) {
  // A weak reference: the scope holds the macro.
  return budget_.function(s.text, [this, &s, around = std::weak_ptr<Scope>(scope)](const Arguments& arguments) {
    const ScopePtr scope = around.lock();
    if (!scope) fail(cat("the macro '", s.text, "' is called outside of where it stands"));
    return call_macro(s, scope, arguments);
  }, {});
}

Value Interpreter::call_macro(const Statement& s, const ScopePtr& scope, const Arguments& arguments) {
  if (++calls_ > kDeepestCalls) throw TemplateFailure{"LS1250", cat("macros call each other deeper than ", kDeepestCalls)};
  const ScopePtr inner = inside(scope);
  ArgumentReader reader(arguments, s.text);
  const size_t without_default = s.targets.size() - s.defaults.size();
  for (size_t i = 0; i < s.targets.size(); ++i) {
    const Value* given = reader.next(s.targets[i]);
    inner->set(s.targets[i], given                  ? *given
                             : i >= without_default ? evaluate(*s.defaults[i - without_default], inner)
                                                    : budget_.undefined(s.targets[i]));
  }
  reader.finish();
  const int line = line_;
  Value result = captured(s.body, inner);
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
  if (function.is_undefined()) fail(cat("'", function.undefined_name(), "' is undefined and cannot be called"));
  fail(cat("a value of type ", function.type(), " cannot be called"));
}

Value Interpreter::comparison(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.operands[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.operands[i + 1], scope);
    const std::string& op = e.operators[i];
    const bool holds = op == "==" ? equal(budget_, left, right) : op == "!=" ? !equal(budget_, left, right)
                     : op == "in" ? contains(budget_, right, left) : op == "not in" ? !contains(budget_, right, left)
                     : op == "<"  ? compare(budget_, left, right) < 0 : op == "<=" ? compare(budget_, left, right) <= 0
                     : op == ">"  ? compare(budget_, left, right) > 0 : compare(budget_, left, right) >= 0;
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  budget_.spend(1);
  line_ = e.line;
  Value value = evaluate_kind(e, scope);
  line_ = e.line;
  return value;
}

Value Interpreter::evaluate_kind(const Expression& e, const ScopePtr& scope) {
  const auto operand = [&](size_t i) { return e.operands[i] ? evaluate(*e.operands[i], scope) : Value(None{}); };
  const auto operands = [&](bool tuple) {
    std::vector<Value> values;
    for (size_t i = 0; i < e.operands.size(); ++i) values.push_back(operand(i));
    return budget_.list(std::move(values), tuple);
  };
  switch (e.kind) {
    case Kind::kLiteral: return e.value;
    case Kind::kName: {
      const Value* found = scope->find(e.name);
      return found ? *found : budget_.undefined(e.name);
    }
    case Kind::kList: return operands(false);
    case Kind::kTuple: return operands(true);
    case Kind::kDict: {
      std::vector<std::pair<Value, Value>> pairs;
      for (size_t i = 0; i < e.operands.size(); i += 2) {
        const Value key = operand(i);
        if (!key.is_string() && !key.is_number() && !key.is_none()) fail(cat("a key of type ", key.type()));
        Value value = operand(i + 1);
        const auto found = std::ranges::find_if(pairs, [&](const auto& pair) { return equal(budget_, pair.first, key); });
        if (found != pairs.end())
          found->second = std::move(value);
        else
          pairs.emplace_back(key, std::move(value));
      }
      return budget_.dict(std::move(pairs));
    }
    case Kind::kAttribute: return attribute(budget_, operand(0), e.name);
    case Kind::kItem: return item(budget_, operand(0), operand(1));
    case Kind::kSlice: {
      const Value sliced = operand(0), first = operand(1), last = operand(2);
      return slice(budget_, sliced, first, last, operand(3));
    }
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
      if (e.operators[0] == "~") {  // then all are
        TextBuilder out(budget_);
        for (size_t i = 0; i < e.operands.size(); ++i) out.add(text_of(budget_, operand(i)));
        return budget_.text(out.take());
      }
      Value left = operand(0);
      for (size_t i = 0; i < e.operators.size(); ++i) left = arithmetic(budget_, e.operators[i], left, operand(i + 1));
      return left;
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
      return e.operands[2] ? operand(2) : budget_.undefined("a condition without else");
  }
  return {};
}

}  // namespace lockstep::chat
