// UTF-8: checking, repairing, and the printable alphabet in which byte-level tokenizers write bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

// The sequence that starts at `text[at]`. Where it is malformed, `size` is the longest prefix of a well-formed sequence
// (at least 1), so replacing each malformed one by U+FFFD gives what Python's errors="replace" gives.
struct Utf8Sequence {
  size_t size = 0;
  bool valid = false;
  bool truncated = false;  // the text ends inside a sequence that is well-formed so far
};
Utf8Sequence utf8_sequence(std::string_view text, size_t at);

bool is_valid_utf8(std::string_view text);

// `text` with each malformed sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// The first byte at or after `at` that is not ASCII.
size_t skip_ascii(std::string_view text, size_t at);

// The code point at `text[at]` of valid UTF-8; `at` moves behind it.
char32_t decode_utf8(std::string_view text, size_t& at);

void append_utf8(char32_t code_point, std::string& out);

// The alphabet of GPT-2's tokenizer: byte b is written as one printable code point. Bytes 33-126, 161-172 and 174-255
// stand for themselves; the other 68, in ascending order, are U+0100 onward (a space is U+0120).
class ByteAlphabet {
 public:
  ByteAlphabet();
  const std::string& symbol(uint8_t byte) const { return symbols_[byte]; }
  // "\u0120the" -> " the"; nothing where a code point is outside the alphabet.
  std::optional<std::string> to_bytes(std::string_view symbols) const;
  std::string to_symbols(std::string_view bytes) const;
  // All bytes in the order of their code points, the order of ids in a trained vocabulary.
  std::array<uint8_t, 256> in_code_point_order() const;

 private:
  std::array<char32_t, 256> code_points_{};
  std::array<std::string, 256> symbols_;
  std::array<int16_t, 0x144> bytes_{};  // by code point, -1 = none
};

}  // namespace lockstep::data
