#include "lockstep/chat/expression_parser.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/builtins.h"

namespace lockstep::chat {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepest = 100;      // of brackets, operators and statements inside each other
constexpr int kDeepestTree = 400;  // of the tree, which attributes, calls and filters in a row make deep too

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kDeepest) parser_.refuse(cat("nested deeper than ", kDeepest));
}

void ExpressionParser::refuse(const std::string& what) const {
  throw DataError({.code = "LS1246", .what = shortened(what), .where = cat(origin_, ":", now().line)});
}

void ExpressionParser::refuse_unsupported(const std::string& what) const {
  throw DataError({.code = "LS1247", .what = cat(shortened(what), " is not supported in chat templates"),
                   .where = cat(origin_, ":", now().line)});
}

Token ExpressionParser::take() {
  Token token = now();
  if (token.kind != Token::Kind::kEnd) ++at_;
  return token;
}

bool ExpressionParser::is(Token::Kind kind, std::string_view text) const {
  return now().kind == kind && (text.empty() || now().text == text);
}

bool ExpressionParser::take_if(Token::Kind kind, std::string_view text) {
  if (!is(kind, text)) return false;
  ++at_;
  return true;
}

Token ExpressionParser::expect(Token::Kind kind, std::string_view what) {
  if (now().kind != kind) refuse(cat(what, " is missing", now().text.empty() ? "" : cat(" before '", now().text, "'")));
  return take();
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_if(Token::Kind::kOperator, text))
    refuse(cat("'", text, "' is missing", now().text.empty() ? "" : cat(" before '", now().text, "'")));
}

std::unique_ptr<Expression> ExpressionParser::node(Kind kind) const {
  return std::make_unique<Expression>(Expression{.kind = kind, .line = now().line});
}

ExpressionPtr ExpressionParser::within(Expression& parent, ExpressionPtr part) const {
  if (!part) return part;
  parent.depth = std::max(parent.depth, part->depth + 1);
  if (parent.depth > kDeepestTree) refuse(cat("an expression nested deeper than ", kDeepestTree));
  return part;
}

void ExpressionParser::add(Expression& parent, ExpressionPtr operand) const {
  parent.operands.push_back(within(parent, std::move(operand)));
}

ExpressionPtr ExpressionParser::tuple(bool with_condition) {
  auto result = node(Kind::kTuple);
  const auto ends = [&] {
    return is(Token::Kind::kBlockEnd) || is(Token::Kind::kVariableEnd) || is_operator(")") || is_operator("=") || is_name("in") ||
           (!with_condition && is_name("if"));
  };
  bool comma = false;
  while (!ends()) {
    add(*result, expression(with_condition));
    if (!take_if(Token::Kind::kOperator, ",")) break;
    comma = true;
  }
  if (result->operands.empty()) refuse("an expression is missing");
  if (comma) return result;
  return std::move(result->operands[0]);
}

ExpressionPtr ExpressionParser::expression(bool with_condition) {
  const Nested nested(*this);
  ExpressionPtr value = logical_or();
  for (int chained = 0; with_condition && is_name("if"); ++chained) {
    if (chained > 200) refuse("more than 200 conditions in a row");
    auto result = node(Kind::kConditional);
    take();
    add(*result, std::move(value));
    add(*result, logical_or());
    add(*result, take_if(Token::Kind::kName, "else") ? expression() : nullptr);
    value = std::move(result);
  }
  return value;
}

ExpressionPtr ExpressionParser::logical_or() {
  auto result = node(Kind::kOr);
  do {
    add(*result, logical_and());
  } while (take_if(Token::Kind::kName, "or"));
  if (result->operands.size() == 1) return std::move(result->operands[0]);
  return result;
}

ExpressionPtr ExpressionParser::logical_and() {
  auto result = node(Kind::kAnd);
  do {
    add(*result, logical_not());
  } while (take_if(Token::Kind::kName, "and"));
  if (result->operands.size() == 1) return std::move(result->operands[0]);
  return result;
}

ExpressionPtr ExpressionParser::logical_not() {
  if (!is_name("not")) return comparison();
  const Nested nested(*this);
  auto result = node(Kind::kNot);
  take();
  add(*result, logical_not());
  return result;
}

ExpressionPtr ExpressionParser::comparison() {
  auto result = node(Kind::kCompare);
  add(*result, sum());
  for (;;) {
    std::string name;
    for (const std::string_view word : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_operator(word)) name = word;
    }
    if (is_name("in")) name = "in";
    if (is_name("not") && ahead().kind == Token::Kind::kName && ahead().text == "in") {
      take();
      name = "not in";
    }
    if (name.empty()) break;
    take();
    result->operators.push_back(name);
    add(*result, sum());
  }
  if (result->operators.empty()) return std::move(result->operands[0]);
  return result;
}

ExpressionPtr ExpressionParser::binary(Parse next, std::initializer_list<std::string_view> operators) {
  auto result = node(Kind::kBinary);
  add(*result, (this->*next)());
  while (std::ranges::any_of(operators, [&](std::string_view word) { return is_operator(word); })) {
    result->operators.push_back(take().text);
    add(*result, (this->*next)());
  }
  if (result->operators.empty()) return std::move(result->operands[0]);
  return result;
}

ExpressionPtr ExpressionParser::sum() { return binary(&ExpressionParser::joined, {"+", "-"}); }
ExpressionPtr ExpressionParser::joined() { return binary(&ExpressionParser::product, {"~"}); }
ExpressionPtr ExpressionParser::product() { return binary(&ExpressionParser::power, {"*", "/", "//", "%"}); }
ExpressionPtr ExpressionParser::power() { return binary(&ExpressionParser::unary, {"**"}); }
ExpressionPtr ExpressionParser::unary() { return unary_of(true); }

ExpressionPtr ExpressionParser::unary_of(bool with_filter) {
  const Nested nested(*this);
  ExpressionPtr value;
  if (is_operator("-") || is_operator("+")) {
    auto result = node(is_operator("-") ? Kind::kNegative : Kind::kPositive);
    take();
    add(*result, unary_of(false));
    value = std::move(result);
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  auto result = node(Kind::kLiteral);
  const Token token = take();
  switch (token.kind) {
    case Token::Kind::kName:
      if (token.text == "true" || token.text == "True") {
        result->value = Value(true);
      } else if (token.text == "false" || token.text == "False") {
        result->value = Value(false);
      } else if (token.text == "none" || token.text == "None") {
        result->value = Value(None{});
      } else {
        result->kind = Kind::kName;
        result->name = token.text;
      }
      return result;
    case Token::Kind::kString: {
      std::string text = token.text;
      while (is(Token::Kind::kString)) text += take().text;
      result->value = Value::literal(std::move(text));
      return result;
    }
    case Token::Kind::kInteger: {
      int64_t number = 0;
      const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      if (read.ec != std::errc()) refuse(cat("the number ", token.text, " is too large"));
      result->value = Value(number);
      return result;
    }
    case Token::Kind::kFloat: {
      double number = 0;
      const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      if (read.ec != std::errc()) refuse(cat("the number ", token.text, " is beyond a float"));
      result->value = Value(number);
      return result;
    }
    default: break;
  }
  if (token.kind == Token::Kind::kOperator && token.text == "(") {
    if (take_if(Token::Kind::kOperator, ")")) {
      result->kind = Kind::kTuple;
      return result;
    }
    ExpressionPtr inner = tuple();
    expect_operator(")");
    return inner;
  }
  if (token.kind == Token::Kind::kOperator && token.text == "[") return list_until("]");
  if (token.kind == Token::Kind::kOperator && token.text == "{") return dict();
  refuse(token.text.empty() ? "an expression is missing" : cat("'", token.text, "' begins no expression"));
}

ExpressionPtr ExpressionParser::list_until(std::string_view close) {
  auto result = node(Kind::kList);
  while (!take_if(Token::Kind::kOperator, close)) {
    if (!result->operands.empty()) {
      expect_operator(",");
      if (take_if(Token::Kind::kOperator, close)) break;
    }
    add(*result, expression());
  }
  return result;
}

ExpressionPtr ExpressionParser::dict() {
  auto result = node(Kind::kDict);
  while (!take_if(Token::Kind::kOperator, "}")) {
    if (!result->operands.empty()) {
      expect_operator(",");
      if (take_if(Token::Kind::kOperator, "}")) break;
    }
    add(*result, expression());
    expect_operator(":");
    add(*result, expression());
  }
  return result;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr operand) {
  for (int chained = 0;; ++chained) {
    if (chained > 200) refuse("more than 200 attributes, subscripts and calls in a row");
    if (take_if(Token::Kind::kOperator, ".")) {
      auto result = node(is(Token::Kind::kInteger) ? Kind::kItem : Kind::kAttribute);
      add(*result, std::move(operand));
      if (result->kind == Kind::kItem)
        add(*result, primary());
      else
        result->name = expect(Token::Kind::kName, "an attribute's name").text;
      operand = std::move(result);
    } else if (take_if(Token::Kind::kOperator, "[")) {
      operand = subscript(std::move(operand));
    } else if (is_operator("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr operand) {
  auto result = node(Kind::kItem);
  add(*result, std::move(operand));
  const auto ends = [&] { return is_operator(":") || is_operator("]"); };
  ExpressionPtr first = is_operator(":") ? nullptr : expression();
  add(*result, std::move(first));
  if (is_operator(",")) refuse_unsupported("a subscript of several values");
  if (is_operator(":")) {
    result->kind = Kind::kSlice;
    for (int part = 0; part < 2; ++part)
      add(*result, take_if(Token::Kind::kOperator, ":") && !ends() ? expression() : nullptr);
  }
  expect_operator("]");
  return result;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr operand) {
  auto result = node(Kind::kCall);
  add(*result, std::move(operand));
  arguments(*result);
  return result;
}

void ExpressionParser::arguments(Expression& into) {
  expect_operator("(");
  bool first = true;
  while (!take_if(Token::Kind::kOperator, ")")) {
    if (!std::exchange(first, false)) {
      expect_operator(",");
      if (take_if(Token::Kind::kOperator, ")")) break;
    }
    if (is_operator("*") || is_operator("**")) refuse_unsupported("* before an argument");
    std::string name;
    if (is(Token::Kind::kName) && ahead().kind == Token::Kind::kOperator && ahead().text == "=") {
      name = take().text;
      take();
    } else if (!into.arguments.empty() && !into.arguments.back().first.empty()) {
      refuse("an argument without a name behind one with a name");
    }
    into.arguments.emplace_back(name, within(into, expression()));
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr operand) {
  auto result = node(Kind::kFilter);
  result->name = expect(Token::Kind::kName, "a filter's name").text;
  if (!find_filter(result->name)) refuse_unsupported(cat("the filter '", result->name, "'"));
  add(*result, std::move(operand));
  if (is_operator("(")) arguments(*result);
  return result;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr operand) {
  for (int chained = 0; take_if(Token::Kind::kOperator, "|"); ++chained) {
    if (chained > 200) refuse("more than 200 filters in a row");
    operand = filter(std::move(operand));
  }
  return operand;
}

ExpressionPtr ExpressionParser::filters_of_block() { return filters(filter(nullptr)); }

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr operand) {
  for (int chained = 0;; ++chained) {
    if (chained > 200) refuse("more than 200 filters and tests in a row");
    if (is_operator("|"))
      operand = filters(std::move(operand));
    else if (is_name("is"))
      operand = test(std::move(operand));
    else if (is_operator("("))
      operand = call(std::move(operand));
    else
      return operand;
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr operand) {
  take();
  const bool negated = take_if(Token::Kind::kName, "not");
  auto result = node(Kind::kTest);
  result->name = is_operator("==") ? take().text : expect(Token::Kind::kName, "a test's name").text;
  if (!find_test(result->name)) refuse_unsupported(cat("the test '", result->name, "'"));
  add(*result, std::move(operand));
  const auto starts_argument = [&] {
    switch (now().kind) {
      case Token::Kind::kName: return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") && !is_name("if") && !is_name("not") && !is_name("in");
      case Token::Kind::kString:
      case Token::Kind::kInteger:
      case Token::Kind::kFloat: return true;
      default: return is_operator("[") || is_operator("{");
    }
  };
  if (is_operator("(")) {
    arguments(*result);
  } else if (starts_argument()) {
    result->arguments.emplace_back("", within(*result, postfix(primary())));
  }
  if (!negated) return result;
  auto inverse = node(Kind::kNot);
  add(*inverse, std::move(result));
  return inverse;
}

}  // namespace lockstep::chat
