#include "lockstep/data/regex_syntax.h"

#include <algorithm>
#include <array>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

// The insides of character classes. Unicode White_Space; Oniguruma's word characters, to which a `\w` outside of
// classes adds six numbers of Latin-1.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHex = "0-9a-fA-F";

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      if (in_class_) {
        class_item();
      } else {
        item();
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  [[noreturn]] void refuse(std::string_view construct) const {
    throw DataError({.code = "LS1215",
                     .what = cat("regular expression ", pattern_, ": ", construct, " at byte ", at_,
                                 " means something else in PCRE2, which matches it here"),
                     .way_out = "write the pattern without it"});
  }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  void replace(size_t count, std::string_view by) {
    out_ += by;
    at_ += count;
  }

  void item() {
    const char c = pattern_[at_];
    if (c == '\\') return escape();
    if (starts("(?")) return group();
    if (c == '{' && quantifier()) return;
    if (c == '[') {
      in_class_ = true;
      copy(1);
      if (starts("^")) copy(1);
      if (starts("]")) replace(1, "\\]");
      return;
    }
    copy(1);
  }

  // `{n}`, `{n,}`, `{n,m}` and Ruby's `{,m}`; false where the brace is a plain sign.
  bool quantifier() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return false;
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool numbers = inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (inside.empty() || inside == "," || !numbers) return false;
    const bool fixed = inside.find(',') == std::string_view::npos;
    const char next = close + 1 < pattern_.size() ? pattern_[close + 1] : '\0';
    if (next == '+' || (fixed && next == '?')) refuse(cat("{", inside, "}", std::string(1, next)));
    out_ += inside.front() == ',' ? cat("{0", inside, "}") : cat("{", inside, "}");
    at_ = close + 1;
    return true;
  }

  void group() {
    if (starts("(?<") || starts("(?:") || starts("(?=") || starts("(?!") || starts("(?>")) return copy(3);
    if (starts("(?#")) return copy(3);
    size_t end = at_ + 2;
    std::string flags;
    for (; end < pattern_.size() && (pattern_[end] == '-' || is_alnum(pattern_[end])); ++end) {
      if (pattern_[end] != 'i' && pattern_[end] != 'm' && pattern_[end] != '-') refuse("this group");
      flags += pattern_[end] == 'm' ? 's' : pattern_[end];  // Ruby's m is Perl's s: a dot takes line ends
    }
    const char last = end < pattern_.size() ? pattern_[end] : '\0';
    // Within a pattern, Ruby lets options hold to the end of the group, over its alternatives; Perl does not.
    if (flags.empty() || (last != ':' && (last != ')' || at_ != 0))) refuse("this group");
    replace(end + 1 - at_, cat("(?", flags, std::string(1, last)));
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) return copy(1);
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return replace(2, cat("[", kSpace, "]"));
      case 'S':
        return replace(2, cat("[^", kSpace, "]"));
      case 'w':
        return replace(2, cat("[", kWord, "]"));
      case 'W':
        return replace(2, cat("[^", kWord, "]"));
      case 'h':
        return replace(2, cat("[", kHex, "]"));
      case 'H':
        return replace(2, cat("[^", kHex, "]"));
      case 'b':
        return replace(2, cat("(?:(?<=[", kWord, "])(?![", kWord, "])|(?<![", kWord, "])(?=[", kWord, "]))"));
      case 'B':
        return replace(2, cat("(?:(?<=[", kWord, "])(?=[", kWord, "])|(?<![", kWord, "])(?![", kWord, "]))"));
      default:
        return common_escape(c, "AzZGRXDdkg");
    }
  }

  // Escapes that mean the same in and out of classes; `others` are the letters that may also stand here.
  void common_escape(char c, std::string_view others) {
    if (c == 'v') return replace(2, "\\x{b}");
    if (c == 'u') {
      const std::string_view digits = pattern_.substr(at_ + 2, 4);
      if (digits.size() < 4 || !std::all_of(digits.begin(), digits.end(), is_hex)) refuse("\\u without four digits");
      return replace(6, cat("\\x{", digits, "}"));
    }
    if ((c == 'p' || c == 'P') && pattern_.substr(at_ + 2, 1) != "{") refuse("\\p without braces");
    if (is_alnum(c) && std::string_view("pPxaefnrt0123456789").find(c) == std::string_view::npos &&
        others.find(c) == std::string_view::npos)
      refuse(cat("\\", std::string(1, c)));
    if (c != 'p' && c != 'P') return copy(2);
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return copy(2);
    property(pattern_.substr(at_ + 3, close - at_ - 3));
  }

  // A category or a yes-or-no property reads the same; a script is \p{sc:...}, since PCRE2's \p{Han} takes what Han
  // shares.
  void property(std::string_view name) {
    static const std::map<std::string_view, std::string_view> kNames = {
        {"Letter", "L"}, {"Mark", "M"},      {"Number", "N"}, {"Punctuation", "P"},
        {"Symbol", "S"}, {"Separator", "Z"}, {"Other", "C"}};
    constexpr std::array<std::string_view, 6> kSame = {"Any",       "Alphabetic",  "Uppercase",
                                                       "Lowercase", "White_Space", "Emoji"};
    const size_t whole = name.size() + 4;
    const std::string_view negation = name.starts_with("^") ? "^" : "";
    name.remove_prefix(negation.size());
    const auto longer = kNames.find(name);
    const bool same = name.size() <= 2 || std::find(kSame.begin(), kSame.end(), name) != kSame.end();
    const std::string translated = longer != kNames.end() ? std::string(longer->second) : cat(same ? "" : "sc:", name);
    replace(whole, cat(pattern_.substr(at_, 2), "{", negation, translated, "}"));
  }

  void class_item() {
    const char c = pattern_[at_];
    if (c == ']') in_class_ = false;
    if (starts("&&")) refuse("&&");
    if (c == '[') return posix_class();
    if (c != '\\' || at_ + 1 == pattern_.size()) return copy(1);
    switch (pattern_[at_ + 1]) {
      case 's':
        return replace(2, kSpace);
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'w':
        return replace(2, kWordInClass);
      case 'h':
        return replace(2, kHex);
      default:
        return common_escape(pattern_[at_ + 1], "bDd");
    }
  }

  void posix_class() {
    static const std::map<std::string_view, std::string_view> kClasses = {
        {"[:alpha:]", R"(\p{Alphabetic})"}, {"[:digit:]", R"(\p{Nd})"},     {"[:space:]", kSpace},
        {"[:upper:]", R"(\p{Uppercase})"},  {"[:lower:]", R"(\p{Lowercase})"},
        {"[:punct:]", R"(\p{P}\p{S})"},     {"[:word:]", kWordInClass},            {"[:xdigit:]", kHex}};
    const size_t close = pattern_.find(":]", at_);
    const size_t size = close == std::string_view::npos ? 0 : close + 2 - at_;
    const auto found = kClasses.find(pattern_.substr(at_, size));
    if (found == kClasses.end()) refuse("a set within a set");
    replace(found->first.size(), found->second);
  }

  std::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Translator(pattern).translate();
}

}  // namespace lockstep::data
