// The regular expressions of tokenizer.json files are Oniguruma's, in Ruby's syntax; ours are matched by PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::data {

// The PCRE2 pattern (compiled with UTF, UCP and MULTILINE) that matches what `pattern` matches in Oniguruma: \s, \S,
// \w, \W, \h, \b and POSIX classes are spelled out, because the two libraries disagree on them (PCRE2's \s takes
// U+180E, its \w no combining marks). DataError LS1215 naming a construct that PCRE2 would read differently and that
// has no spelling here: sets within sets, `&&`, `{n,m}+`, options in the middle of a pattern.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace lockstep::data
