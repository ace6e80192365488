// The tokens of a tokenizer.json and their ids: the `vocab` of the model, and the added tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/data/added_tokens.h"
#include "lockstep/data/bpe_model.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {

// No vocabulary is near; bounds what a damaged file allocates.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 21) - 1;

class Vocabulary {
 public:
  // The `vocab` of the component `model`. DataError LS1210 for ids that are no ids, or given twice.
  explicit Vocabulary(const Component& model);
  // An added token keeps the id that the vocabulary has for it, else takes the next free one behind the vocabulary and
  // the added tokens before it. The file has to say so too (LS1210): Hugging Face tokenizers numbers by this rule and
  // passes over what the file says.
  void add(const Component& root, const std::vector<AddedToken>& tokens);

  std::optional<int32_t> id_of(std::string_view token) const;
  // Null where no token has the id.
  const std::string* token_of(int32_t id) const;
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }
  // The largest id + 1; ids may have gaps.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // visit(token, id) for each token of the model, in no stated order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [token, id] : ids_) visit(token, id);
  }

 private:
  void set(int32_t id, const std::string& token);
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const;
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::optional<std::string>> tokens_;
  std::vector<bool> special_;
};

// The component `model` as the merges that encode. `alphabet` is what its pre-tokenizer makes of text. DataError LS1210
// where it is malformed, LS1211 naming an option that is not supported.
BpeModel read_bpe_model(const Component& model, const Vocabulary& vocabulary, BpeModel::Alphabet alphabet);

}  // namespace lockstep::data
