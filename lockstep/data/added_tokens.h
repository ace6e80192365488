// The `added_tokens` of a tokenizer.json: texts that are one token wherever they stand, found before the text is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/normalizer.h"
#include "lockstep/data/token_trie.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that behind it
  bool normalized = false;   // matched in normalized text, by its normalized content
  bool special = false;      // decoding may leave it out
};

// The tokens in the order of the file. DataError LS1210 where one is malformed; ids are not judged here.
std::vector<AddedToken> read_added_tokens(const Component& root, int64_t max_id);

// Finds tokens in a text. Immutable after construction; any number of threads may use one.
class AddedTokenMatcher {
 public:
  using OnToken = std::function<void(int32_t id)>;
  using OnText = std::function<void(std::string_view part)>;

  // Of `tokens` those whose `normalized` is the one given; `normalizer` makes the content of normalized ones.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer);

  bool empty() const { return trie_.empty(); }
  // Calls on_token for the tokens of `text` and on_text for what lies between them, in order. Time is linear in the
  // text. The result is the number of steps made.
  uint64_t cut(std::string_view text, const OnToken& on_token, const OnText& on_text) const;

 private:
  bool stands_alone(std::string_view text, const TokenTrie::Found& found) const;

  std::vector<AddedToken> tokens_;
  TokenTrie trie_;
  Regex word_, space_;
};

}  // namespace lockstep::data
