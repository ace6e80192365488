#include "lockstep/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

// Unicode White_Space as the inside of a character class.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// `\s` and `\S` spelled out, except `\S` inside a class, where it cannot be.
std::string with_unicode_white_space(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kWhiteSpace) : cat("[", kWhiteSpace, "]");
      } else if (escaped == 'S' && !in_class) {
        out += cat("[^", kWhiteSpace, "]");
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

constexpr size_t kJitStackBytes = 64 << 20;  // reserved, committed only as far as a match uses it

}  // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, Kind kind) : code_(std::make_unique<Code>()) {
  code_->pattern = pattern;
  const bool literal = kind == Kind::kLiteral;
  const std::string source = literal ? std::string(pattern) : with_unicode_white_space(pattern);
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
  int error = 0;
  size_t offset = 0;
  code_->code = pcre2_compile(bytes_of(source), source.size(), options, &error, &offset, nullptr);
  if (code_->code == nullptr)
    throw DataError({.code = "LS1213",
                     .what = cat("malformed regular expression ", pattern, ": ", error_text(error), " after \"",
                                 source.substr(0, offset), "\"")});
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Scan::State {
  const Code& code;
  std::string_view text;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;  // only after a match needed more stack than the default
  pcre2_jit_stack* stack = nullptr;
  size_t at = 0;
  std::optional<size_t> last_end{};

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  int search() {
    const auto run = code.jit ? pcre2_jit_match : pcre2_match;
    return run(code.code, bytes_of(text), text.size(), at, PCRE2_NO_UTF_CHECK, data, context);
  }

  int search_with_large_stack() {
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(64 << 10, kJitStackBytes, nullptr);
    pcre2_jit_stack_assign(context, nullptr, stack);
    return search();
  }
};

Regex::Scan::Scan(const Regex& regex, std::string_view text) : state_(new State{.code = *regex.code_, .text = text}) {
  state_->data = pcre2_match_data_create(1, nullptr);
}

Regex::Scan::~Scan() = default;

bool Regex::Scan::next(Match& match) {
  State& s = *state_;
  while (s.at <= s.text.size()) {
    int found = s.search();
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && s.context == nullptr) found = s.search_with_large_stack();
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
      throw DataError({.code = "LS1214",
                       .what = cat("regular expression ", s.code.pattern, " gave up at byte ", s.at,
                                   " of the text: ", error_text(found))});
    const size_t* range = pcre2_get_ovector_pointer(s.data);
    match = {.begin = range[0], .end = range[1]};
    if (match.begin == match.end) {
      // An empty match: go on behind the next code point, or this one would be found for ever.
      s.at = match.end + (match.end < s.text.size() ? utf8_sequence(s.text, match.end).size : 1);
      if (s.last_end == match.end) continue;
    } else {
      s.at = match.end;
    }
    s.last_end = match.end;
    return true;
  }
  return false;
}

}  // namespace lockstep::data
