#include "lockstep/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/regex_syntax.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

constexpr size_t kJitStackBytes = 64 << 20;  // reserved, committed only as far as a match uses it
constexpr size_t kLeastSteps = 10'000'000;    // PCRE2's own limit for one match
constexpr size_t kStepsPerByte = 16;

}  // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;
  mutable std::atomic<pcre2_match_data*> spare{nullptr};  // of the last scan, for the next
  ~Code() {
    pcre2_code_free(code);
    pcre2_match_data_free(spare.load());
  }
};

Regex::Regex(std::string_view pattern, Kind kind) : code_(std::make_unique<Code>()) {
  code_->pattern = pattern;
  const bool literal = kind == Kind::kLiteral;
  const std::string source = literal ? std::string(pattern) : pcre2_pattern(pattern);
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  code_->code = pcre2_compile(bytes_of(source), source.size(), options, &error, &offset, context.get());
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
  pcre2_match_context* context = nullptr;  // only after a match needed more than the default stack or steps
  pcre2_jit_stack* stack = nullptr;
  size_t at = 0;
  std::optional<size_t> last_end{};

  ~State() {
    pcre2_match_data_free(code.spare.exchange(data));
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  int search() {
    const auto run = code.jit ? pcre2_jit_match : pcre2_match;
    return run(code.code, bytes_of(text), text.size(), at, PCRE2_NO_UTF_CHECK, data, context);
  }

  // A run of white space is walked back once: steps in proportion to the text are no sign of a bad pattern.
  int search_with_larger_limits() {
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(64 << 10, kJitStackBytes, nullptr);
    pcre2_jit_stack_assign(context, nullptr, stack);
    const size_t steps = std::clamp<size_t>(text.size(), kLeastSteps / kStepsPerByte, UINT32_MAX / kStepsPerByte);
    pcre2_set_match_limit(context, static_cast<uint32_t>(steps * kStepsPerByte));
    return search();
  }
};

Regex::Scan::Scan(const Regex& regex, std::string_view text) : state_(new State{.code = *regex.code_, .text = text}) {
  state_->data = state_->code.spare.exchange(nullptr);
  if (state_->data == nullptr) state_->data = pcre2_match_data_create(1, nullptr);
}

Regex::Scan::~Scan() = default;

bool Regex::Scan::next(Match& match) {
  State& s = *state_;
  while (s.at <= s.text.size()) {
    int found = s.search();
    if ((found == PCRE2_ERROR_JIT_STACKLIMIT || found == PCRE2_ERROR_MATCHLIMIT) && s.context == nullptr)
      found = s.search_with_larger_limits();
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

std::string replace_all(const Regex& pattern, std::string_view text, std::string_view by) {
  std::string out;
  Regex::Scan scan(pattern, text);
  size_t at = 0;
  for (Match match; scan.next(match); at = match.end) {
    out += text.substr(at, match.begin - at);
    out += by;
  }
  out += text.substr(at);
  return out;
}

}  // namespace lockstep::data
