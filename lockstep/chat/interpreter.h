// Runs a parsed template.
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/chat/builtins.h"
#include "lockstep/chat/syntax.h"

namespace lockstep::chat {

// Variables by name; what is not found in a scope is looked for in the one around it.
class Scope {
 public:
  explicit Scope(Budget& budget, std::shared_ptr<Scope> around = nullptr) : budget_(budget), around_(std::move(around)) {}
  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value);

 private:
  Budget& budget_;
  Charge charge_{};
  std::shared_ptr<Scope> around_;
  std::map<std::string, Value> values_;
};

class Interpreter {
 public:
  Interpreter(const std::string& origin, const RenderLimits& limits, std::time_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // `variables` is an object. DataError LS1248 (with the line), LS1249 where the template raised, LS1250 beyond the limits.
  std::string run(const Body& body, const OrderedJson& variables);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  Flow execute(const Body& body, const ScopePtr& scope);
  Flow statement(const Statement& s, const ScopePtr& scope);
  Flow loop(const Statement& s, const ScopePtr& scope);
  void assign(const Statement& s, const ScopePtr& scope);
  void bind(const std::vector<std::string>& targets, const Value& value, const ScopePtr& scope);
  ScopePtr inside(const ScopePtr& scope) { return std::make_shared<Scope>(budget_, scope); }
  Value loop_object(const std::vector<Value>& items, size_t at, const Value& changed);
  Value macro(const Statement& s, const ScopePtr& scope);
  Value call_macro(const Statement& s, const ScopePtr& scope, const Arguments& arguments);
  Value captured(const Body& body, const ScopePtr& scope);
  Value through_filters(const Expression& filters, const Value& text, const ScopePtr& scope);
  void write(const std::string& text);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_kind(const Expression& e, const ScopePtr& scope);
  Value filtered(const Expression& e, const Value& operand, const ScopePtr& scope);
  Value comparison(const Expression& e, const ScopePtr& scope);
  Value call(const Expression& e, const ScopePtr& scope);
  Arguments arguments(const Expression& e, const ScopePtr& scope);

  void add_functions(Scope& scope);

  const std::string& origin_;
  Budget budget_;  // before all values: they give back what they held
  std::time_t now_;
  std::string out_;
  int64_t pending_ = 0;  // bytes of out_ and of all texts that wait for a block inside them to end
  std::vector<Value> namespaces_{};  // all: only they can hold themselves, and are emptied in the end
  std::vector<Value> loop_keys_{};
  int calls_ = 0;  // of macros, one inside the other
  int line_ = 0;
};

}  // namespace lockstep::chat
