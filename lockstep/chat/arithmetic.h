// Python's operators on values.
#pragma once

#include <string>

#include "lockstep/chat/builtins.h"

namespace lockstep::chat {

// + - * / // % and **; fails for kinds that have no such operator and for integers beyond 64 bits.
Value arithmetic(Budget& budget, const std::string& op, const Value& a, const Value& b);
Value negative(const Value& value);

}  // namespace lockstep::chat
