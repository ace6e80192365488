// The tokenizer of a Hugging Face `tokenizer.json`: BPE over bytes, as in GPT-2, Llama 3 and Qwen, or over code points
// with bytes to fall back on, as in Llama 2 and Mistral. It gives the ids and texts that Hugging Face `tokenizers`
// gives.
//
// A file is normalizer -> pre-tokenizer -> model -> post-processor, a decoder, and added tokens; each has a header of
// its own that says what is supported. Whatever else a file asks for is a DataError LS1211 that names the component.
// What differs from `tokenizers`: text that has no token, and ids that are no token's, are errors and not left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/added_tokens.h"
#include "lockstep/data/bpe_model.h"
#include "lockstep/data/decoder.h"
#include "lockstep/data/normalizer.h"
#include "lockstep/data/post_processor.h"
#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/tokenizer_config.h"
#include "lockstep/data/vocabulary.h"

namespace lockstep::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct EncodeOptions {
  bool add_special_tokens = false;  // apply the post-processor, which may put tokens before and behind the text
  uint64_t* steps = nullptr;        // where to add the number of steps made: added tokens, symbols, merges
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// Immutable; any number of threads may use one.
class Tokenizer {
 public:
  // `path` as base/source.h says: the tokenizer.json, its folder, hf:DIR. DataError LS1203 (no file), LS1205 (no JSON), LS1210 (malformed),
  // LS1211 (not supported), LS1213 and LS1215 (its regular expressions), LS1216 (a file beside it).
  static Tokenizer load(const std::filesystem::path& path);
  // `origin` names the text in messages.
  static Tokenizer parse(std::string_view json, std::string_view origin);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of the text. Malformed UTF-8 is read as U+FFFD, as Python's errors="replace" does. Time is O(n log n) in the
  // longest piece and otherwise linear. DataError LS1212 where the vocabulary has no token for a part of the text.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The text of the ids: always valid UTF-8, bytes that form none read as U+FFFD. DataError LS1212 for an unknown id.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  // What the decoder reads for one token: with ByteLevel its bytes, perhaps part of a UTF-8 sequence, else the token as
  // it is spelled. DataError LS1212 for an unknown id.
  std::string_view token_bytes(int32_t id) const;

  // False where the model works on code points.
  bool byte_level() const { return pre_tokenizer_.byte_level(); }
  // The number of rows a model needs: the largest id + 1 (ids may have gaps).
  int64_t vocab_size() const { return vocabulary_.size(); }
  // `token` as the file spells it, with U+0120 for a space.
  std::optional<int32_t> token_id(std::string_view token) const { return vocabulary_.id_of(token); }
  // Null where no token has the id.
  const std::string* token_of(int32_t id) const { return vocabulary_.token_of(id); }
  // True for added tokens that the file calls special. DataError LS1212 for an unknown id.
  bool is_special(int32_t id) const;

  // The tokens that the files beside a loaded tokenizer.json name.
  const SpecialIds& special() const { return special_; }
  // The end of a document: the eos token of those files, else the first id that ends a generation, else <|endoftext|>.
  std::optional<int32_t> eos_id() const;
  // Every id that ends a generation, eos_id() first.
  std::vector<int32_t> eos_ids() const;

 private:
  friend class StreamDecoder;
  Tokenizer(const Json& file, const std::string& origin);
  explicit Tokenizer(const Component& root);
  void encode_normalized(std::string_view text, bool at_start, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view text, bool at_start, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  bool leaves_out(int32_t id, const DecodeOptions& options) const {
    return options.skip_special_tokens && is_special(id);
  }

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Vocabulary vocabulary_;
  BpeModel model_;
  Decoder decoder_;
  PostProcessor post_processor_;
  std::vector<AddedToken> added_tokens_;
  AddedTokenMatcher added_, added_normalized_;  // matched before and after the normalizer
  std::vector<std::string> inputs_;             // of the decoder, by id
  SpecialIds special_;
  // One scratch is kept from call to call, for its cache; a second thread at the same time makes its own.
  mutable std::atomic<BpeScratch*> scratch_{nullptr};
};

// Turns a stream of ids into text piece by piece: what later tokens may still change is held back (a character whose
// bytes span several tokens, for one), so the parts together are what decode() gives for all ids at once, and each is
// valid UTF-8.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options), stream_(tokenizer.decoder_) {}
  // DataError LS1212 for an unknown id.
  std::string push(int32_t id);
  // What is still held back; the stream starts anew.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  Decoder::Stream stream_;
};

}  // namespace lockstep::data
