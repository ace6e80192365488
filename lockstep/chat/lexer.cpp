#include "lockstep/chat/lexer.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/characters.h"

namespace lockstep::chat {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') || static_cast<signed char>(c) < 0; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

// Line ends become \n; one at the very end is dropped.
std::string normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& origin) : text_(normalized(source)), origin_(origin) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = find_tag();
      data(tag);
      if (tag == std::string::npos) break;
      if (text_[tag + 1] == '#')
        comment();
      else if (!raw())
        expression();
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError({.code = "LS1246", .what = what, .where = cat(origin_, ":", line_)});
  }

  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > at_) line_starting_ = text_[to - 1] == '\n';
    at_ = to;
  }

  bool has(std::string_view word) const { return std::string_view(text_).substr(at_).starts_with(word); }

  size_t find_tag() const {
    for (size_t i = text_.find('{', at_); i != std::string::npos; i = text_.find('{', i + 1)) {
      if (i + 1 < text_.size() && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) return i;
    }
    return std::string::npos;
  }

  // What stands before the tag, less the white space that the tag takes.
  void data(size_t tag) {
    const size_t end = tag == std::string::npos ? text_.size() : tag;
    std::string piece = text_.substr(at_, end - at_);
    if (tag != std::string::npos) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      if (sign == '-') {
        piece.erase(static_cast<size_t>(std::find_if_not(piece.rbegin(), piece.rend(), is_space).base() - piece.begin()));
      } else if (sign != '+' && text_[tag + 1] != '{') {
        strip_line_begin(piece);
      }
    }
    if (!piece.empty()) add(Token::Kind::kData, piece);
    advance(end);
  }

  void strip_line_begin(std::string& piece) const {
    const size_t newline = piece.rfind('\n');
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin == 0 && !line_starting_) return;
    if (std::all_of(piece.begin() + static_cast<ptrdiff_t>(begin), piece.end(), is_space)) piece.erase(begin);
  }

  // Behind "%}", "#}" (trims one line end) or "}}"; `mark` stands at at_.
  void close(std::string_view mark, bool trims) {
    size_t end = at_;
    const char sign = text_[end];
    if (sign == '-' || sign == '+') ++end;
    end += mark.size();
    if (sign == '-') {
      while (end < text_.size() && is_space(text_[end])) ++end;
    } else if (sign != '+' && trims && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    advance(end);
  }

  void comment() {
    const size_t begin = at_ + 2 + (at_ + 2 < text_.size() && (text_[at_ + 2] == '-' || text_[at_ + 2] == '+'));
    const size_t end = text_.find("#}", begin);
    if (end == std::string::npos) refuse("a comment {# that never ends");
    const char before = text_[end - 1];
    advance(end > begin && (before == '-' || before == '+') ? end - 1 : end);
    close("#}", true);
  }

  // {% raw %} ... {% endraw %}: one piece of data.
  bool raw() {
    if (text_[at_ + 1] != '%') return false;
    size_t end = at_;
    if (!raw_tag(end, "raw", true)) return false;
    advance(end);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      size_t behind = tag;
      if (!raw_tag(behind, "endraw", false)) continue;
      data(tag);
      advance(behind);
      return true;
    }
    refuse("{% raw %} without {% endraw %}");
  }

  bool raw_tag(size_t& at, std::string_view word, bool keeps_newline) const {
    size_t i = at + 2;
    const auto blanks = [&] { while (i < text_.size() && is_space(text_[i])) ++i; };
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) ++i;
    blanks();
    if (text_.compare(i, word.size(), word) != 0) return false;
    i += word.size();
    blanks();
    const bool minus = i < text_.size() && text_[i] == '-', plus = !keeps_newline && i < text_.size() && text_[i] == '+';
    if (minus || plus) ++i;
    if (text_.compare(i, 2, "%}") != 0) return false;
    i += 2;
    if (minus) blanks();
    else if (!plus && !keeps_newline && i < text_.size() && text_[i] == '\n') ++i;
    at = i;
    return true;
  }

  void expression() {
    const bool block = text_[at_ + 1] == '%';
    const std::string_view mark = block ? "%}" : "}}";
    add(block ? Token::Kind::kBlockBegin : Token::Kind::kVariableBegin, "");
    const size_t sign = at_ + 2;
    advance(sign < text_.size() && (text_[sign] == '-' || text_[sign] == '+') ? sign + 1 : sign);
    std::string open;  // brackets
    for (;;) {
      size_t blank = at_;
      while (blank < text_.size() && is_space(text_[blank])) ++blank;
      advance(blank);
      if (at_ == text_.size()) refuse(cat("a tag that never ends with ", mark));
      const bool signed_end = text_[at_] == '-' || (text_[at_] == '+' && block);
      if (open.empty() && (has(mark) || (signed_end && text_.compare(at_ + 1, 2, mark) == 0))) break;
      token(open);
    }
    add(block ? Token::Kind::kBlockEnd : Token::Kind::kVariableEnd, "");
    close(mark, block);
  }

  void token(std::string& open) {
    const char c = text_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < text_.size() && is_name(text_[end])) ++end;
      constexpr size_t kLongestName = 1000;
      if (end - at_ > kLongestName) refuse(cat("a name of more than ", kLongestName, " bytes"));
      add(Token::Kind::kName, text_.substr(at_, end - at_));
      advance(end);
    } else if (is_digit(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      string(c);
    } else {
      operation(open);
    }
  }

  void number() {
    size_t end = at_;
    const auto digits = [&] { while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '_')) ++end; };
    digits();
    bool real = false;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end + 1 < text_.size() && (text_[end] | 32) == 'e') {
      const size_t first = end + 1 + (text_[end + 1] == '+' || text_[end + 1] == '-');
      if (first < text_.size() && is_digit(text_[first])) {
        real = true;
        end = first;
        digits();
      }
    }
    std::string word = text_.substr(at_, end - at_);
    if (end < text_.size() && is_name_start(text_[end])) refuse(cat("the number ", word, text_[end], " is not supported"));
    std::erase(word, '_');
    add(real ? Token::Kind::kFloat : Token::Kind::kInteger, word);
    advance(end);
  }

  void string(char quote) {
    std::string value;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= text_.size()) refuse("a text in quotes that never ends");
      if (text_[i] == quote) break;
      if (text_[i] != '\\') {
        value += text_[i];
      } else {
        ++i;
        if (i >= text_.size()) refuse("a text in quotes that never ends");
        escape(i, value);
      }
    }
    add(Token::Kind::kString, std::move(value));
    advance(i + 1);
  }

  // text_[i] stands behind a backslash; leaves i at the escape's last character. Python's rules.
  void escape(size_t& i, std::string& value) {
    constexpr std::string_view kLetters = "ntrabfv", kBytes = "\n\t\r\a\b\f\v";
    const char c = text_[i];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      value += kBytes[known];
    } else if (c == '\n') {
      // joins lines
    } else if (c == '\\' || c == '\'' || c == '"') {
      value += c;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t point = 0;
      for (size_t k = 1; k <= count; ++k) {
        const char digit = i + k < text_.size() ? text_[i + k] : ' ';
        if (!is_digit(digit) && !((digit | 32) >= 'a' && (digit | 32) <= 'f')) refuse(cat("a broken escape \\", c));
        point = point * 16 + static_cast<uint32_t>(is_digit(digit) ? digit - '0' : (digit | 32) - 'a' + 10);
      }
      if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) refuse(cat("an escape \\", c, " of no character"));
      append_utf8(value, point);
      i += count;
    } else if (c >= '0' && c <= '7') {
      uint32_t point = 0;
      size_t k = 0;
      for (; k < 3 && i + k < text_.size() && text_[i + k] >= '0' && text_[i + k] <= '7'; ++k)
        point = point * 8 + static_cast<uint32_t>(text_[i + k] - '0');
      append_utf8(value, point);
      i += k - 1;
    } else {
      value += '\\';
      value += c;
    }
  }

  void operation(std::string& open) {
    constexpr std::array<std::string_view, 27> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const std::string_view word : kOperators) {
      if (!has(word)) continue;
      const char c = word[0];
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) refuse(cat("a ", c, " that closes nothing"));
        open.pop_back();
      }
      add(Token::Kind::kOperator, std::string(word));
      return advance(at_ + word.size());
    }
    refuse(cat("the character '", text_[at_], "' means nothing here"));
  }

  std::string text_;
  const std::string& origin_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& origin) { return Lexer(source, origin).run(); }

}  // namespace lockstep::chat
