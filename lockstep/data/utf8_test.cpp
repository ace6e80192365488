#include "lockstep/data/utf8.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::data {
namespace {

// Expected values are those of Python: bytes.decode("utf-8", errors="replace").
TEST(Utf8, EachMalformedPartBecomesOneReplacement) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(replace_invalid_utf8("abc"), "abc");
  EXPECT_EQ(replace_invalid_utf8("a\xFF"
                                 "b"),
            "a" + r + "b");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);                  // overlong "/"
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\xAF"), r + r + r);          // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);                      // cut short at the end
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82z"), r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98\xE2\x82\xAC"), r + "\u20AC");
  EXPECT_EQ(replace_invalid_utf8("\x80\x80"), r + r);
}

TEST(Utf8, ReplacedTextIsValidForAllShortByteStrings) {
  const std::string edges = {'\x41', '\x80', '\x8F', '\x90', '\x9F', '\xA0', '\xBF', '\xC1',
                             '\xC2', '\xE0', '\xED', '\xEF', '\xF0', '\xF4', '\xF5'};
  for (const char a : edges)
    for (const char b : edges)
      for (const char c : edges)
        for (const char d : edges) {
          const std::string bytes = {a, b, c, d};
          const std::string repaired = replace_invalid_utf8(bytes);
          ASSERT_TRUE(is_valid_utf8(repaired));
          ASSERT_EQ(repaired == bytes, is_valid_utf8(bytes));
        }
}

TEST(Utf8, CodePointsRoundTrip) {
  for (const char32_t code_point : {0x24, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF}) {
    std::string text;
    append_utf8(code_point, text);
    EXPECT_TRUE(is_valid_utf8(text));
    EXPECT_EQ(utf8_sequence(text, 0).size, text.size());
  }
}

TEST(ByteAlphabet, IsTheOneOfGpt2) {
  const ByteAlphabet alphabet;
  EXPECT_EQ(alphabet.to_symbols(" the\n"), "\u0120the\u010A");
  EXPECT_EQ(alphabet.symbol(0), "\u0100");
  EXPECT_EQ(alphabet.symbol(0xAD), "\u0143");
  EXPECT_EQ(alphabet.symbol(0xFF), "\u00FF");
  std::set<std::string> symbols;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    symbols.insert(alphabet.to_symbols(bytes));
    EXPECT_EQ(alphabet.to_bytes(alphabet.to_symbols(bytes)), bytes);
  }
  EXPECT_EQ(symbols.size(), 256u);
  EXPECT_EQ(alphabet.to_bytes("a b"), std::nullopt);
  EXPECT_EQ(alphabet.to_bytes("\u20AC"), std::nullopt);
  EXPECT_EQ(alphabet.in_code_point_order().front(), '!');
}

}  // namespace
}  // namespace lockstep::data
