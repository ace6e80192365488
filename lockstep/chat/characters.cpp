#include "lockstep/chat/characters.h"

#include <utf8proc.h>

#include <algorithm>

namespace lockstep::chat {
namespace {

constexpr uint32_t kReplacement = 0xfffd;

bool is_letter(uint32_t point) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(point));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

void append_upper(std::string& out, uint32_t point) {
  if (point == 0xdf) {  // the one common letter whose capital is two
    out += "SS";
  } else {
    append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point))));
  }
}

void append_lower(std::string& out, uint32_t point) {
  append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
}

}  // namespace

void append_utf8(std::string& text, uint32_t point) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> points;
  points.reserve(text.size());
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(at, left, &point);
    points.push_back(size > 0 ? static_cast<uint32_t>(point) : kReplacement);
    at += size > 0 ? size : 1;
    left -= size > 0 ? size : 1;
  }
  return points;
}

std::string from_code_points(const uint32_t* first, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) append_utf8(text, first[i]);
  return text;
}

bool is_space(uint32_t point) {
  if (point <= 0x20) return point == 0x20 || (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x1f);
  return point == 0x85 || point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
         point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

std::string upper(std::string_view text) {
  std::string out;
  for (const uint32_t point : code_points(text)) append_upper(out, point);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (const uint32_t point : code_points(text)) append_lower(out, point);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (const uint32_t point : code_points(text)) {
    inside ? append_lower(out, point) : append_upper(out, point);
    inside = is_letter(point);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  for (const uint32_t point : code_points(text)) {
    first ? append_upper(out, point) : append_lower(out, point);
    first = false;
  }
  return out;
}

std::string strip(std::string_view text, std::string_view which, bool left, bool right) {
  const std::vector<uint32_t> points = code_points(text);
  std::vector<uint32_t> cut = code_points(which);
  std::sort(cut.begin(), cut.end());
  const auto goes = [&](uint32_t point) {
    return which.empty() ? is_space(point) : std::binary_search(cut.begin(), cut.end(), point);
  };
  size_t begin = 0, end = points.size();
  while (left && begin < end && goes(points[begin])) ++begin;
  while (right && begin < end && goes(points[end - 1])) --end;
  return from_code_points(points.data() + begin, end - begin);
}

}  // namespace lockstep::chat
