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

struct RenderLimits {
  int64_t steps = 50'000'000;
  size_t output_bytes = size_t{64} << 20;
};

// Variables by name; what is not found in a scope is looked for in the one around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> around = nullptr) : around_(std::move(around)) {}
  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value) { values_[name] = std::move(value); }

 private:
  std::shared_ptr<Scope> around_;
  std::map<std::string, Value> values_;
};

class Interpreter {
 public:
  Interpreter(const std::string& origin, const RenderLimits& limits, std::time_t now);

  // DataError LS1248 (with the line), LS1249 where the template raised, LS1250 beyond the limits.
  std::string run(const Body& body, const Value& variables);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  Flow execute(const Body& body, const ScopePtr& scope);
  Flow statement(const Statement& s, const ScopePtr& scope);
  Flow loop(const Statement& s, const ScopePtr& scope);
  void assign(const Statement& s, const ScopePtr& scope);
  void bind(const std::vector<std::string>& targets, const Value& value, const ScopePtr& scope);
  Value macro(const Statement& s, const ScopePtr& scope);
  Value call_macro(const Statement& s, const ScopePtr& scope, const Arguments& arguments);
  std::string captured(const Body& body, const ScopePtr& scope);
  Value through_filters(const Expression& filters, const std::string& text, const ScopePtr& scope);
  void write(const std::string& text);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_kind(const Expression& e, const ScopePtr& scope);
  Value filtered(const Expression& e, const Value& operand, const ScopePtr& scope);
  Value comparison(const Expression& e, const ScopePtr& scope);
  Value call(const Expression& e, const ScopePtr& scope);
  Arguments arguments(const Expression& e, const ScopePtr& scope);

  void add_functions(Scope& scope);

  const std::string& origin_;
  RenderLimits limits_;
  Budget budget_;
  std::time_t now_;
  std::string out_;
  int calls_ = 0;  // of macros, one inside the other
  int line_ = 0;
};

}  // namespace lockstep::chat
