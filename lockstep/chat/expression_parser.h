// Expressions of a template, with Jinja's precedences.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/chat/lexer.h"
#include "lockstep/chat/syntax.h"

namespace lockstep::chat {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& origin)
      : tokens_(std::move(tokens)), origin_(origin) {}

  // `with_condition` = false leaves an `if` to the statement.
  ExpressionPtr expression(bool with_condition = true);
  ExpressionPtr tuple(bool with_condition = true);
  ExpressionPtr filters(ExpressionPtr operand);  // `| name(...)`s; a null operand is what a block will give
  ExpressionPtr filters_of_block();              // the same where the first | is left out

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take();
  bool is(Token::Kind kind, std::string_view text = {}) const;
  bool is_operator(std::string_view text) const { return is(Token::Kind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::kName, text); }
  bool take_if(Token::Kind kind, std::string_view text);
  Token expect(Token::Kind kind, std::string_view what);
  void expect_operator(std::string_view text);
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse_unsupported(const std::string& what) const;

  // Counts nesting for as long as it lives. DataError LS1246 beyond the limit.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    ~Nested() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  using Parse = ExpressionPtr (ExpressionParser::*)();
  std::unique_ptr<Expression> node(Expression::Kind kind) const;
  // Both count the depth of the tree; DataError LS1246 beyond the limit.
  ExpressionPtr within(Expression& parent, ExpressionPtr part) const;
  void add(Expression& parent, ExpressionPtr operand) const;
  ExpressionPtr binary(Parse next, std::initializer_list<std::string_view> operators);
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr joined();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary();
  ExpressionPtr unary_of(bool with_filter);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr operand);
  ExpressionPtr subscript(ExpressionPtr operand);
  ExpressionPtr call(ExpressionPtr operand);
  ExpressionPtr test(ExpressionPtr operand);
  ExpressionPtr filters_and_tests(ExpressionPtr operand);
  ExpressionPtr list_until(std::string_view close);
  ExpressionPtr dict();
  ExpressionPtr filter(ExpressionPtr operand);
  void arguments(Expression& into);

  std::vector<Token> tokens_;
  const std::string& origin_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace lockstep::chat
