// Texts by code points and what stands where in them, with their cost: everything here is linear in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/chat/budget.h"
#include "lockstep/chat/characters.h"

namespace lockstep::chat {

std::vector<uint32_t> budgeted_points(Budget& budget, std::string_view text);

// Where `part` stands at `from` or behind it, in bytes; npos = nowhere.
size_t find_text(Budget& budget, std::string_view text, std::string_view part, size_t from);
// The parts of the text between separators, which are not empty; at most `most` cuts (below 0 = any number), from the
// left or from the right.
std::vector<std::string_view> split_text(Budget& budget, std::string_view text, std::string_view separator, int64_t most,
                                         bool from_right);

}  // namespace lockstep::chat
