// Statements of a template.
#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/expression_parser.h"

namespace lockstep::chat {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

class TemplateParser {
 public:
  TemplateParser(std::vector<Token> tokens, const std::string& origin) : p_(std::move(tokens), origin) {}

  Body run() {
    Body body = until({});
    return body;
  }

 private:
  StatementPtr statement(Kind kind) const {
    return std::make_unique<Statement>(Statement{.kind = kind, .line = p_.now().line});
  }

  void end_block() { p_.expect(Token::Kind::kBlockEnd, "%}"); }

  // Statements up to a tag whose first word is one of `ends`, which stays (its {% is taken).
  Body until(std::initializer_list<std::string_view> ends) {
    const ExpressionParser::Nested nested(p_);
    Body body;
    const int begin = p_.now().line;
    for (;;) {
      if (p_.is(Token::Kind::kEnd)) {
        if (ends.size() == 0) return body;
        p_.refuse(cat("{% ", *(ends.end() - 1), " %} is missing for the tag of line ", begin));
      }
      if (p_.is(Token::Kind::kData)) {
        auto text = statement(Kind::kText);
        text->text = p_.take().text;
        body.push_back(std::move(text));
      } else if (p_.is(Token::Kind::kVariableBegin)) {
        auto output = statement(Kind::kOutput);
        p_.take();
        output->expression = p_.tuple();
        p_.expect(Token::Kind::kVariableEnd, "}}");
        body.push_back(std::move(output));
      } else {
        p_.expect(Token::Kind::kBlockBegin, "{%");
        if (std::ranges::any_of(ends, [&](std::string_view end) { return p_.is_name(end); })) return body;
        body.push_back(tag());
      }
    }
  }

  StatementPtr tag() {
    const Token word = p_.expect(Token::Kind::kName, "a tag's name");
    if (word.text == "for") return loop();
    if (word.text == "if") return condition("endif");
    if (word.text == "set") return assignment();
    if (word.text == "macro") return macro();
    if (word.text == "filter") return filter_block();
    if (word.text == "with") return with();
    if (word.text == "generation") return scope("endgeneration");
    if (word.text == "break" || word.text == "continue") {
      if (loops_ == 0) p_.refuse(cat("{% ", word.text, " %} outside of a loop"));
      auto result = statement(word.text == "break" ? Kind::kBreak : Kind::kContinue);
      end_block();
      return result;
    }
    constexpr std::array kOfJinja = {"block", "extends", "include", "import", "from", "call", "autoescape", "do", "print", "trans", "debug"};
    if (std::ranges::find(kOfJinja, word.text) != kOfJinja.end()) p_.refuse_unsupported(cat("the tag {% ", word.text, " %}"));
    p_.refuse(cat("the tag {% ", word.text, " %} is unknown or stands where none is open"));
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool bracket = p_.take_if(Token::Kind::kOperator, "(");
    do {
      if (!names.empty() && !p_.is(Token::Kind::kName)) break;
      names.push_back(target());
    } while (p_.take_if(Token::Kind::kOperator, ","));
    if (bracket) p_.expect_operator(")");
    return names;
  }

  std::string target() {
    const std::string name = p_.expect(Token::Kind::kName, "a variable's name").text;
    constexpr std::array kReserved = {"true", "false", "none", "True", "False", "None", "and", "or", "not", "in", "is", "if", "else"};
    if (std::ranges::find(kReserved, name) != kReserved.end()) p_.refuse(cat("'", name, "' cannot be assigned to"));
    return name;
  }

  StatementPtr loop() {
    auto result = statement(Kind::kFor);
    result->targets = targets();
    if (!p_.take_if(Token::Kind::kName, "in")) p_.refuse("'in' is missing in {% for %}");
    result->expression = p_.tuple(false);
    if (p_.take_if(Token::Kind::kName, "if")) result->condition = p_.expression();
    if (p_.is_name("recursive")) p_.refuse_unsupported("a recursive loop");
    end_block();
    ++loops_;
    result->body = until({"else", "endfor"});
    --loops_;
    if (p_.take_if(Token::Kind::kName, "else")) {
      end_block();
      result->otherwise = until({"endfor"});
    }
    close("endfor");
    return result;
  }

  void close(std::string_view word) {
    p_.take_if(Token::Kind::kName, word);
    end_block();
  }

  StatementPtr condition(std::string_view end) {
    const ExpressionParser::Nested nested(p_);
    auto result = statement(Kind::kIf);
    result->expression = p_.tuple(false);
    end_block();
    result->body = until({"elif", "else", "endif"});
    if (p_.take_if(Token::Kind::kName, "elif")) {
      result->otherwise.push_back(condition(end));
      return result;
    }
    if (p_.take_if(Token::Kind::kName, "else")) {
      end_block();
      result->otherwise = until({"endif"});
    }
    close(end);
    return result;
  }

  StatementPtr assignment() {
    auto result = statement(Kind::kSet);
    result->targets = targets();
    if (result->targets.size() == 1 && p_.take_if(Token::Kind::kOperator, "."))
      result->attribute = p_.expect(Token::Kind::kName, "an attribute's name").text;
    if (p_.take_if(Token::Kind::kOperator, "=")) {
      result->expression = p_.tuple();
      end_block();
      return result;
    }
    result->kind = Kind::kSetBlock;
    if (result->targets.size() != 1) p_.refuse("{% set %} of a block has one variable");
    if (p_.is_operator("|")) result->expression = p_.filters(nullptr);
    end_block();
    const int loops = std::exchange(loops_, 0);
    result->body = until({"endset"});
    loops_ = loops;
    close("endset");
    return result;
  }

  StatementPtr macro() {
    auto result = statement(Kind::kMacro);
    result->text = target();
    p_.expect_operator("(");
    while (!p_.take_if(Token::Kind::kOperator, ")")) {
      if (!result->targets.empty()) p_.expect_operator(",");
      result->targets.push_back(target());
      if (p_.take_if(Token::Kind::kOperator, "="))
        result->defaults.push_back(p_.expression());
      else if (!result->defaults.empty())
        p_.refuse("a parameter without default behind one with a default");
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    result->body = until({"endmacro"});
    loops_ = loops;
    p_.take_if(Token::Kind::kName, "endmacro");
    p_.take_if(Token::Kind::kName, result->text);
    end_block();
    return result;
  }

  StatementPtr filter_block() {
    auto result = statement(Kind::kFilter);
    // {% filter upper|trim %} is the block's text through the filters: read as if there were a | in front.
    result->expression = p_.filters_of_block();
    end_block();
    const int loops = std::exchange(loops_, 0);
    result->body = until({"endfilter"});
    loops_ = loops;
    close("endfilter");
    return result;
  }

  StatementPtr with() {
    auto result = statement(Kind::kWith);
    while (!p_.is(Token::Kind::kBlockEnd)) {
      if (!result->targets.empty()) p_.expect_operator(",");
      result->targets.push_back(target());
      p_.expect_operator("=");
      result->defaults.push_back(p_.expression());
    }
    end_block();
    result->body = until({"endwith"});
    close("endwith");
    return result;
  }

  StatementPtr scope(std::string_view end) {
    auto result = statement(Kind::kScope);
    end_block();
    const int loops = std::exchange(loops_, 0);
    result->body = until({end});
    loops_ = loops;
    close(end);
    return result;
  }

  ExpressionParser p_;
  int loops_ = 0;  // that enclose this place
};

}  // namespace

void require_template_size(uintmax_t bytes, const std::string& origin) {
  constexpr uintmax_t kLargest = 1 << 20;
  if (bytes > kLargest)
    throw DataError({.code = "LS1246", .what = cat("a chat template of ", bytes, " bytes; 1 MiB is the limit"), .where = origin});
}

Body parse_template(std::string_view source, const std::string& origin) {
  require_template_size(source.size(), origin);
  return TemplateParser(tokenize(source, origin), origin).run();
}

}  // namespace lockstep::chat
