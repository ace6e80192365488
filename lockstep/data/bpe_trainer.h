// Trains a byte-level BPE vocabulary on text: the most frequent adjacent pair of symbols becomes a new token, again and
// again. Counts are updated only in the words that hold the pair.
// Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (ACL 2016), section 3.2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/data/pre_tokenizer.h"

namespace lockstep::data {

struct BpeTrainerOptions {
  int64_t vocab_size = 4096;  // with the 256 bytes and the special tokens
  int64_t min_count = 1;      // a pair seen less often is not merged; the vocabulary is then smaller than asked
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

// Ids: the special tokens, the 256 bytes in the order of their code points (utf8.h), the merges in order. Equal counts
// are decided by the smaller pair of ids, so the same text always gives the same vocabulary; it is the one that the
// BpeTrainer of Hugging Face tokenizers learns.
struct BpeVocabulary {
  std::vector<std::string> special_tokens;
  std::vector<std::string> pieces;                  // bytes of token special_tokens.size() + i
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids, in the order learned
  int64_t size() const { return static_cast<int64_t>(special_tokens.size() + pieces.size()); }
  // The text of a tokenizer.json: pre-tokenizer and decoder ByteLevel.
  std::string tokenizer_json() const;
};

class BpeTrainer {
 public:
  // ConfigError LS1080 where vocab_size has no room for the bytes and the special tokens.
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of one document. Malformed UTF-8 is read as U+FFFD.
  void add(std::string_view text);
  BpeVocabulary train() const;

  int64_t num_words() const { return num_words_; }
  int64_t num_distinct_words() const { return static_cast<int64_t>(words_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const;
  };
  BpeTrainerOptions options_;
  PreTokenizer pre_tokenizer_;
  // Words in the order first seen, and where each is in that list.
  std::vector<std::pair<std::string, int64_t>> words_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> index_;
  int64_t num_words_ = 0;
};

}  // namespace lockstep::data
