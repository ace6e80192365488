// The tokenizer of a Hugging Face `tokenizer.json`: byte-level BPE as in GPT-2, Llama 3 and Qwen.
//
// Supported: model BPE (merges as pairs or as "a b"; ignore_merges); normalizer none or NFC; pre-tokenizer ByteLevel,
// or Split steps that end in ByteLevel; post-processor none or ByteLevel; decoder ByteLevel; added tokens, which are
// matched before everything else. Whatever else a file asks for is a DataError LS1211 that names the component.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/data/bpe_model.h"
#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/token_trie.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// Immutable; any number of threads may use one.
class Tokenizer {
 public:
  // DataError LS1203 (no file), LS1205 (no JSON), LS1210 (malformed), LS1211 (not supported).
  static Tokenizer load(const std::filesystem::path& path);
  // `origin` names the text in messages.
  static Tokenizer parse(std::string_view json, std::string_view origin);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of the text. Malformed UTF-8 is read as U+FFFD, as Python's errors="replace" does. Time is O(n log n) in the
  // longest piece and otherwise linear.
  std::vector<int32_t> encode(std::string_view text) const;

  // The text of the ids: always valid UTF-8, bytes that form none read as U+FFFD. DataError LS1212 for an unknown id.
  std::string decode(std::span<const int32_t> ids) const;
  // The bytes of one token, perhaps part of a UTF-8 sequence. DataError LS1212 for an unknown id.
  std::string_view token_bytes(int32_t id) const;

  // The number of rows a model needs: the largest id + 1 (ids may have gaps).
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_of_.size()); }
  // `token` as the file spells it, with U+0120 for a space.
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The id of <|endoftext|>, the end of a document.
  std::optional<int32_t> eos_id() const { return token_to_id(kEndOfText); }

 private:
  Tokenizer(const Json& file, const std::string& origin);
  void read_model(const class Component& model);
  void read_merges(const class Component& model);
  void read_added_tokens(const class Component& root);
  void set_token(int32_t id, const std::string& token, std::string bytes);
  void encode_normalized(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  BpeModel model_;
  std::optional<PreTokenizer> pre_tokenizer_;
  bool nfc_ = false;
  TokenTrie added_, added_normalized_;  // matched before and after the normalizer
  std::unordered_map<std::string, int32_t> id_of_;
  std::vector<std::optional<std::string>> bytes_of_;
  // One scratch is kept from call to call, for its cache; a second thread at the same time makes its own.
  mutable std::atomic<BpeScratch*> scratch_{nullptr};
};

// Turns a stream of ids into text piece by piece: a character whose bytes span several tokens is held back until it is
// whole, so the parts together are what decode() gives for all ids at once.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t id);
  // What is still held back, as U+FFFD; the stream starts anew.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
};

}  // namespace lockstep::data
