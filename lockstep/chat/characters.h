// Texts as Python sees them: code points, not bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::chat {

void append_utf8(std::string& text, uint32_t point);
// Malformed bytes become U+FFFD.
std::vector<uint32_t> code_points(std::string_view text);
std::string from_code_points(const uint32_t* first, size_t count);

bool is_space(uint32_t point);  // str.isspace
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
// Without the characters of `which` at its ends; an empty `which` = white space.
std::string strip(std::string_view text, std::string_view which, bool left, bool right);

}  // namespace lockstep::chat
