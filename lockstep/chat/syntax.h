// A parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/chat/value.h"

namespace lockstep::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kLiteral,     // value
    kName,        // name
    kList,        // operands
    kTuple,       // operands
    kDict,        // operands: key, value, key, value
    kAttribute,   // operands[0].name
    kItem,        // operands[0][operands[1]]
    kSlice,       // operands[0][operands[1]:operands[2]:operands[3]]; null = left out
    kCall,        // operands[0](arguments)
    kFilter,      // operands[0]|name(arguments)
    kTest,        // operands[0] is name(arguments)
    kNot,         // not operands[0]
    kNegative,    // -operands[0]
    kPositive,    // +operands[0]
    kBinary,      // operands[0] operators[0] operands[1] operators[1] operands[2] ..., from the left: arithmetic and ~
    kCompare,     // the same with comparisons
    kAnd,
    kOr,
    kConditional,  // operands[0] if operands[1] else operands[2] (null = undefined)
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of expressions inside each other
  std::string name{};
  Value value{};
  std::vector<ExpressionPtr> operands{};
  std::vector<std::string> operators{};
  std::vector<std::pair<std::string, ExpressionPtr>> arguments{};  // "" = positional, then named ones
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Statement {
  enum class Kind {
    kText,       // text
    kOutput,     // {{ expression }}
    kFor,        // {% for targets in expression if condition %} body {% else %} otherwise
    kIf,         // {% if expression %} body {% else %} otherwise; elif = an if alone in otherwise
    kSet,        // {% set targets = expression %}; one target may be name.attribute
    kSetBlock,   // {% set targets[0] %} body {% endset %}, through the filters of `expression` where there is one
    kMacro,      // {% macro text(targets) %} body; defaults of the last ones
    kFilter,     // {% filter ... %} body: `expression` is a filter without operand
    kWith,       // {% with targets = defaults %} body
    kScope,      // a body in a scope of its own
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  std::string text{};
  std::string attribute{};  // of a namespace, in kSet
  std::vector<std::string> targets{};
  ExpressionPtr expression{};
  ExpressionPtr condition{};
  std::vector<ExpressionPtr> defaults{};
  Body body{};
  Body otherwise{};
};

// DataError LS1246 for a template that is larger than any needs to be: asked before a file of it is read.
void require_template_size(uintmax_t bytes, const std::string& origin);
// DataError LS1246 for what is no template, LS1247 for what Jinja has and this does not; with `origin` and the line.
Body parse_template(std::string_view source, const std::string& origin);

}  // namespace lockstep::chat
