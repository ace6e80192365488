// Perl-style regular expressions with Unicode classes over UTF-8 text (PCRE2 with its just-in-time compiler).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::data {

struct Match {
  size_t begin = 0, end = 0;
};

// Immutable after construction; any number of threads may search with it.
class Regex {
 public:
  enum class Kind { kPattern, kLiteral };
  // A pattern is in the syntax of tokenizer.json, which is Oniguruma's (regex_syntax.h). DataError LS1213 with the
  // position where it is malformed, LS1215 for a construct that PCRE2 reads differently.
  explicit Regex(std::string_view pattern, Kind kind = Kind::kPattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // One scan over one valid UTF-8 text, which must outlive it.
  class Scan {
   public:
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    // The next match, left to right; an empty one only where the previous match did not end. False at the end.
    // DataError LS1214 where the pattern backtracks without bound on this text.
    bool next(Match& match);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// `text` with every match replaced by `by`, as it stands.
std::string replace_all(const Regex& pattern, std::string_view text, std::string_view by);

}  // namespace lockstep::data
