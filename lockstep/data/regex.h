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
  // DataError LS1213 with the position where the pattern is malformed. `\s` is Unicode White_Space, as in the
  // tokenizers library; PCRE2's own also takes U+180E.
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

}  // namespace lockstep::data
