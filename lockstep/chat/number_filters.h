// Filters that give numbers: value|int(default=0).
#pragma once

#include "lockstep/chat/builtins.h"

namespace lockstep::chat {

Value int_filter(Budget& budget, const Value& operand, const Arguments& arguments);
Value float_filter(Budget& budget, const Value& operand, const Arguments& arguments);
Value abs_filter(Budget& budget, const Value& operand, const Arguments& arguments);
Value round_filter(Budget& budget, const Value& operand, const Arguments& arguments);

}  // namespace lockstep::chat
