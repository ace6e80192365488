// What the `normalizer` of a tokenizer.json does to text before it is cut: NFC, NFD, NFKC, NFKD, Prepend, Replace, or a
// Sequence of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/regex.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// The normal form of valid UTF-8 by the tables of Unicode 15 (utf8proc 2.8). O(n log n) also for a megabyte of
// combining marks. Unicode Standard Annex 15.
std::string to_normal_form(std::string_view text, NormalForm form);

// Immutable; any number of threads may use one.
class Normalizer {
 public:
  Normalizer() = default;  // leaves text alone
  // DataError LS1211 naming a component that is not supported, LS1210 where one is malformed.
  explicit Normalizer(const Component& component);

  bool empty() const { return steps_.empty(); }
  // `text` is valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  struct Step {
    std::optional<NormalForm> form{};
    std::optional<Regex> pattern{};  // replaced by `text`; none = `text` is put in front of what is not empty
    std::string text{};
  };
  void add(const Component& component);
  std::vector<Step> steps_;
};

}  // namespace lockstep::data
