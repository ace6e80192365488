// A template's source as tokens, with Jinja's rules for white space: trim_blocks and lstrip_blocks are on, as transformers
// sets them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::chat {

struct Token {
  enum class Kind {
    kData,           // text between tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,  // without quotes, escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
};

// DataError LS1246 naming `origin` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& origin);

}  // namespace lockstep::chat
