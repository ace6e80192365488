#include "lockstep/data/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;  // no vocabulary is near; bounds what a damaged file can allocate

// Normalization form C. `text` is valid UTF-8.
std::string to_nfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* made = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size < 0) throw DataError({.code = "LS1212", .what = cat("cannot bring text to NFC: ", utf8proc_errmsg(size))});
  return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

int32_t id_from(const Json& value, const Component& owner, const std::string& token) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMaxId)
    owner.malformed(cat("gives \"", token, "\" the id ", value.dump(), ", not a whole number from 0 to ", kMaxId));
  return value.get<int32_t>();
}

// The two sides of a merge, as ["a", "b"] or as "a b".
std::pair<std::string, std::string> sides_of(const Json& merge, const Component& model, size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const std::vector<std::string> parts = split(merge.get<std::string>(), ' ');
    if (parts.size() == 2) return {parts[0], parts[1]};
  }
  model.malformed(cat("merge ", rank, " is ", merge.dump(), ", neither [\"a\", \"b\"] nor \"a b\""));
}

bool reads_nfc(const Component& root) {
  if (!root.has("normalizer")) return false;
  const Component normalizer = root.child("normalizer");
  if (normalizer.type() != "NFC") normalizer.unsupported(cat("has type ", normalizer.type()));
  normalizer.allow_only({"type"});
  return true;
}

// ByteLevel adds no tokens: as a post-processor it only moves offsets, which we do not keep.
void require_byte_level(const Component& root, std::string_view name) {
  const Component component = root.child(name);
  if (component.type() != "ByteLevel") component.unsupported(cat("has type ", component.type()));
  component.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

// Options of the model that change how text is cut, at the values under which they do nothing.
void require_plain_bpe(const Component& model) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("type") && model.type() != "BPE") model.unsupported(cat("has type ", model.type()));
  if (model.has("dropout") && model.at("dropout") != 0) model.unsupported("has dropout");
  for (const auto* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.has(name) && !model.text(name).empty()) model.unsupported(cat("has a ", name));
  if (model.flag("byte_fallback", false)) model.unsupported("has byte_fallback (a sentencepiece vocabulary)");
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return Tokenizer(read_json(path), path.string());
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view origin) {
  return Tokenizer(parse_json(json, origin), std::string(origin));
}

Tokenizer::Tokenizer(const Json& file, const std::string& origin) {
  const Component root(file, "", origin);
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  for (const auto* name : {"truncation", "padding"})
    if (root.has(name)) root.unsupported(cat("sets ", name));
  nfc_ = reads_nfc(root);
  pre_tokenizer_.emplace(root.child("pre_tokenizer"));
  require_byte_level(root, "decoder");
  if (root.has("post_processor")) require_byte_level(root, "post_processor");
  read_model(root.child("model"));
  if (root.has("added_tokens")) read_added_tokens(root);
}

Tokenizer::Tokenizer(Tokenizer&& other) noexcept
    : model_(std::move(other.model_)),
      pre_tokenizer_(std::move(other.pre_tokenizer_)),
      nfc_(other.nfc_),
      added_(std::move(other.added_)),
      added_normalized_(std::move(other.added_normalized_)),
      id_of_(std::move(other.id_of_)),
      bytes_of_(std::move(other.bytes_of_)),
      scratch_(other.scratch_.exchange(nullptr)) {}

Tokenizer::~Tokenizer() {
  delete scratch_.load();
}

void Tokenizer::set_token(int32_t id, const std::string& token, std::string bytes) {
  const auto index = static_cast<size_t>(id);
  if (bytes_of_.size() <= index) bytes_of_.resize(index + 1);
  bytes_of_[index] = std::move(bytes);
  id_of_[token] = id;
}

void Tokenizer::read_model(const Component& model) {
  require_plain_bpe(model);
  const bool whole_pieces = model.flag("ignore_merges", false);
  const ByteAlphabet alphabet;
  const Json& vocab = model.child("vocab").node();
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = id_from(value, model, token);
    if (static_cast<size_t>(id) < bytes_of_.size() && bytes_of_[static_cast<size_t>(id)])
      model.malformed(cat("gives id ", id, " to two tokens, one of them \"", token, "\""));
    const std::optional<std::string> bytes = alphabet.to_bytes(token);
    if (bytes && bytes->size() == 1) model_.set_byte(static_cast<uint8_t>(bytes->front()), id);
    if (bytes && whole_pieces) model_.set_whole_piece(*bytes, id);
    set_token(id, token, bytes.value_or(token));
  }
  // An unknown-token rule has nothing to act on where every byte is a token.
  if (model.has("unk_token"))
    for (int byte = 0; byte < 256; ++byte)
      if (!id_of_.contains(alphabet.symbol(static_cast<uint8_t>(byte))))
        model.unsupported(cat("has an unk_token and no token for byte ", byte));
  read_merges(model);
}

void Tokenizer::read_merges(const Component& model) {
  const Json& merges = model.at("merges");
  if (!merges.is_array()) model.malformed("member \"merges\" is not a list");
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = sides_of(merges[rank], model, rank);
    const auto id = [&](const std::string& token) {
      const auto found = id_of_.find(token);
      if (found == id_of_.end()) model.malformed(cat("merge ", rank, " needs \"", token, "\", not in the vocabulary"));
      return found->second;
    };
    const int32_t left_id = id(left), right_id = id(right);
    model_.set_merge(left_id, right_id, {.rank = static_cast<uint32_t>(rank), .id = id(left + right)});
  }
}

void Tokenizer::read_added_tokens(const Component& root) {
  const Json& list = root.at("added_tokens");
  if (!list.is_array()) root.malformed("member \"added_tokens\" is not a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const Component token(list[i], cat("added_tokens[", i, "]"), root.file());
    token.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    for (const auto* name : {"single_word", "lstrip", "rstrip"})
      if (token.flag(name, false)) token.unsupported(cat("sets ", name));
    const std::string content = token.text("content");
    if (content.empty()) token.malformed("has empty content");
    const int32_t id = id_from(token.at("id"), token, content);
    const auto known = id_of_.find(content);
    if (known != id_of_.end() && known->second != id)
      token.malformed(cat("gives \"", content, "\" the id ", id, ", but the vocabulary has ", known->second));
    const auto index = static_cast<size_t>(id);
    if (known == id_of_.end() && index < bytes_of_.size() && bytes_of_[index])
      token.malformed(cat("gives \"", content, "\" the id ", id, ", which is another token's"));
    set_token(id, content, content);
    const bool normalized = token.flag("normalized", !token.flag("special", false));
    (normalized ? added_normalized_ : added_).add(normalized && nfc_ ? to_nfc(content) : content, id);
  }
}

namespace {

// Calls on_token(id) for the tokens of `trie` in `text` and on_text(part) for what lies between them, in order.
template <typename OnToken, typename OnText>
void cut_at_tokens(const TokenTrie& trie, std::string_view text, OnToken on_token, OnText on_text) {
  size_t at = 0;
  if (!trie.empty()) {
    while (const auto found = trie.find(text, at)) {
      if (found->begin > at) on_text(text.substr(at, found->begin - at));
      on_token(found->id);
      at = found->end;
    }
  }
  if (at < text.size()) on_text(text.substr(at));
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (!is_valid_utf8(text)) return encode(replace_invalid_utf8(text));
  std::unique_ptr<BpeScratch> scratch(scratch_.exchange(nullptr));
  if (!scratch) scratch = std::make_unique<BpeScratch>();
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  cut_at_tokens(
      added_, text, [&](int32_t id) { ids.push_back(id); },
      [&](std::string_view part) {
        if (nfc_) return encode_normalized(to_nfc(part), *scratch, ids);
        encode_normalized(part, *scratch, ids);
      });
  delete scratch_.exchange(scratch.release());
  return ids;
}

void Tokenizer::encode_normalized(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  cut_at_tokens(
      added_normalized_, text, [&](int32_t id) { ids.push_back(id); },
      [&](std::string_view part) { encode_plain(part, scratch, ids); });
}

void Tokenizer::encode_plain(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  pre_tokenizer_->split(text, [&](std::string_view piece) { model_.encode(piece, scratch, ids); });
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= bytes_of_.size() || !bytes_of_[index])
    throw DataError({.code = "LS1212",
                     .what = cat("token id ", id, " is not in the vocabulary (", vocab_size(), " ids)"),
                     .way_out = "are the ids from another tokenizer?"});
  return *bytes_of_[index];
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += token_bytes(id);
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = id_of_.find(std::string(token));
  return found == id_of_.end() ? std::nullopt : std::optional(found->second);
}

std::string StreamDecoder::push(int32_t id) {
  held_ += tokenizer_.token_bytes(id);
  // Only the last sequence can be incomplete; it is at most three bytes long.
  size_t whole = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back)
    if (utf8_sequence(held_, held_.size() - back).truncated) whole = held_.size() - back;
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace lockstep::data
