#include "lockstep/data/utf8.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lockstep::data {
namespace {

struct Lead {
  size_t size = 0;                  // of the whole sequence; 0 = no sequence starts with this byte
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
};

// Table 3-7 of the Unicode Standard: well-formed UTF-8 byte sequences.
Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {.size = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.size = 2};
  if (byte == 0xE0) return {.size = 3, .low = 0xA0};
  if (byte == 0xED) return {.size = 3, .high = 0x9F};
  if (byte < 0xF0) return {.size = 3};
  if (byte == 0xF0) return {.size = 4, .low = 0x90};
  if (byte < 0xF4) return {.size = 4};
  if (byte == 0xF4) return {.size = 4, .high = 0x8F};
  return {};
}

// The first malformed sequence at or after `at`.
size_t find_invalid(std::string_view text, size_t at) {
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Utf8Sequence sequence = utf8_sequence(text, at);
    if (!sequence.valid) return at;
    at += sequence.size;
  }
  return text.size();
}

}  // namespace

Utf8Sequence utf8_sequence(std::string_view text, size_t at) {
  Lead lead = lead_of(static_cast<uint8_t>(text[at]));
  if (lead.size == 0) return {.size = 1};
  for (size_t i = 1; i < lead.size; ++i) {
    if (at + i == text.size()) return {.size = i, .truncated = true};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    if (byte < lead.low || byte > lead.high) return {.size = i};
    lead.low = 0x80;
    lead.high = 0xBF;
  }
  return {.size = lead.size, .valid = true};
}

bool is_valid_utf8(std::string_view text) {
  return find_invalid(text, 0) == text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bad = find_invalid(text, at);
    out += text.substr(at, bad - at);
    if (bad == text.size()) break;
    out += "\xEF\xBF\xBD";
    at = bad + utf8_sequence(text, bad).size;
  }
  return out;
}

size_t skip_ascii(std::string_view text, size_t at) {
  for (uint64_t word; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if (word & 0x8080808080808080u) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

char32_t decode_utf8(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[at + i])); };
  const char32_t first = byte(0);
  char32_t point = first;
  size_t size = 1;
  if (first >= 0xF0) {
    point = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    size = 4;
  } else if (first >= 0xE0) {
    point = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    size = 3;
  } else if (first >= 0xC0) {
    point = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    size = 2;
  }
  at += size;
  return point;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const char32_t code_point = printable ? static_cast<char32_t>(byte) : next++;
    const auto index = static_cast<size_t>(byte);
    code_points_[index] = code_point;
    append_utf8(code_point, symbols_[index]);
    bytes_[code_point] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::to_bytes(std::string_view symbols) const {
  std::string bytes;
  for (size_t at = 0; at < symbols.size();) {
    // Every code point of the alphabet takes one or two bytes.
    const auto first = static_cast<uint8_t>(symbols[at]);
    size_t code_point = first;
    if (first >= 0x80) {
      if ((first & 0xE0) != 0xC0 || at + 1 == symbols.size()) return std::nullopt;
      code_point = static_cast<size_t>(first & 0x1F) << 6 | (static_cast<uint8_t>(symbols[at + 1]) & 0x3F);
    }
    if (code_point >= bytes_.size() || bytes_[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_[code_point]);
    at += first < 0x80 ? 1 : 2;
  }
  return bytes;
}

std::string ByteAlphabet::to_symbols(std::string_view bytes) const {
  std::string symbols;
  for (const char byte : bytes) symbols += symbols_[static_cast<uint8_t>(byte)];
  return symbols;
}

std::array<uint8_t, 256> ByteAlphabet::in_code_point_order() const {
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::sort(order.begin(), order.end(), [this](uint8_t a, uint8_t b) { return code_points_[a] < code_points_[b]; });
  return order;
}

}  // namespace lockstep::data
