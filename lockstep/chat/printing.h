// Values as text: Python's str and repr, and JSON.
#pragma once

#include <string>

#include "lockstep/chat/value.h"

namespace lockstep::chat {

std::string text_of(Budget& budget, const Value& value);  // str(value); "" for undefined
std::string float_text(double value);                     // Python's repr of a float

struct JsonStyle {
  int indent = -1;  // -1: one line
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator{};  // empty: json.dumps' own
  std::string key_separator{};
};
// json.dumps(value, ensure_ascii=ascii).
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace lockstep::chat
