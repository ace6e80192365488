#include "lockstep/data/added_tokens.h"

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

bool is_continuation(char c) {
  return (static_cast<uint8_t>(c) & 0xC0) == 0x80;
}

// The code point at, or before, a place that is not the end.
std::string_view point_at(std::string_view text, size_t at) {
  return text.substr(at, utf8_sequence(text, at).size);
}
std::string_view point_before(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return text.substr(begin, at - begin);
}

bool matches(const Regex& regex, std::string_view text) {
  Match match;
  return Regex::Scan(regex, text).next(match);
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const Component& root, int64_t max_id) {
  std::vector<AddedToken> tokens;
  std::set<std::string> contents;
  for (const Component& one : root.list("added_tokens")) {
    one.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.content = one.text("content"),
                     .id = static_cast<int32_t>(one.integer("id", 0, max_id)),
                     .single_word = one.flag("single_word", false),
                     .lstrip = one.flag("lstrip", false),
                     .rstrip = one.flag("rstrip", false),
                     .special = one.flag("special", false)};
    token.normalized = one.flag("normalized", !token.special);
    if (token.content.empty()) one.malformed("has empty content");
    if (!contents.insert(token.content).second) one.malformed(cat("is \"", token.content, "\" a second time"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens, bool normalized,
                                     const Normalizer& normalizer)
    : word_(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])"), space_(R"(\s)") {
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  // Where two become equal by normalizing, the special one counts, then the first.
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.special > b.special; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    trie_.add(normalized ? normalizer.apply(content) : content, static_cast<uint32_t>(i));
  }
  trie_.build();
}

bool AddedTokenMatcher::stands_alone(std::string_view text, const TokenTrie::Found& found) const {
  return (found.begin == 0 || !matches(word_, point_before(text, found.begin))) &&
         (found.end == text.size() || !matches(word_, point_at(text, found.end)));
}

uint64_t AddedTokenMatcher::cut(std::string_view text, const OnToken& on_token, const OnText& on_text) const {
  if (empty()) {
    if (!text.empty()) on_text(text);
    return 0;
  }
  std::vector<TokenTrie::Found> matches_found;
  uint64_t steps = trie_.find_all(text, matches_found);
  size_t at = 0;  // behind the last token; before the next match where that token took its white space
  for (const TokenTrie::Found& found : matches_found) {
    const AddedToken& token = tokens_[found.value];
    if (token.single_word && !stands_alone(text, found)) continue;
    size_t begin = found.begin, end = found.end;
    for (; token.lstrip && begin > at && matches(space_, point_before(text, begin)); ++steps)
      begin -= point_before(text, begin).size();
    for (; token.rstrip && end < text.size() && matches(space_, point_at(text, end)); ++steps)
      end += point_at(text, end).size();
    if (at < begin) on_text(text.substr(at, begin - at));
    on_token(token.id);
    at = end;
  }
  if (at < text.size()) on_text(text.substr(at));
  return steps;
}

}  // namespace lockstep::data
