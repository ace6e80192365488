#include "lockstep/data/vocabulary.h"

#include <algorithm>

#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

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

// Options that change how text is cut, at the values under which they do nothing.
void require_plain_bpe(const Component& model) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("type") && model.type() != "BPE") model.unsupported(cat("has type ", model.type()));
  if (model.has("dropout") && model.at("dropout") != 0) model.unsupported("has dropout");
  for (const auto* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.has(name) && !model.text(name).empty()) model.unsupported(cat("has a ", name));
}

std::string fallback_token(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return cat("<0x", std::string(1, kDigits[static_cast<size_t>(byte / 16)]),
             std::string(1, kDigits[static_cast<size_t>(byte % 16)]), ">");
}

void read_byte_tokens(const Component& model, const Vocabulary& vocabulary, bool fallback, BpeModel& made) {
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    if (const auto id = vocabulary.id_of(alphabet.symbol(static_cast<uint8_t>(byte)))) {
      made.set_byte(static_cast<uint8_t>(byte), *id);
    } else if (fallback) {
      model.unsupported(cat("has byte_fallback, ByteLevel and no token for byte ", byte));
    }
  }
}

void read_code_point_tokens(const Component& model, const Vocabulary& vocabulary, bool fallback, BpeModel& made) {
  vocabulary.for_each([&](const std::string& token, int32_t id) {
    size_t at = 0;
    if (token.empty()) return;
    const char32_t point = decode_utf8(token, at);
    if (at == token.size()) made.set_code_point(point, id);
  });
  for (int byte = 0; fallback && byte < 256; ++byte) {
    const std::optional<int32_t> id = vocabulary.id_of(fallback_token(byte));
    if (!id) model.unsupported(cat("has byte_fallback and no token ", fallback_token(byte)));
    made.set_fallback(static_cast<uint8_t>(byte), *id);
  }
}

void read_merges(const Component& model, const Vocabulary& vocabulary, BpeModel& made) {
  const Json& merges = model.at("merges");
  if (!merges.is_array()) model.malformed("member \"merges\" is not a list");
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = sides_of(merges[rank], model, rank);
    const auto id = [&](const std::string& token) {
      const std::optional<int32_t> found = vocabulary.id_of(token);
      if (!found) model.malformed(cat("merge ", rank, " needs \"", token, "\", not in the vocabulary"));
      return *found;
    };
    made.set_merge(id(left), id(right), {.rank = static_cast<uint32_t>(rank), .id = id(left + right)});
  }
}

}  // namespace

size_t Vocabulary::Hash::operator()(std::string_view text) const {
  return hash64(text);
}

Vocabulary::Vocabulary(const Component& model) {
  const Component vocab = model.child("vocab");
  ids_.reserve(vocab.node().size());
  for (const auto& [token, value] : vocab.node().items()) {
    const bool whole = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokenId);
    if (!whole)
      model.malformed(
          cat("gives \"", token, "\" the id ", value.dump(), ", not a whole number from 0 to ", kMaxTokenId));
    const auto id = value.get<int32_t>();
    if (const std::string* other = token_of(id))
      model.malformed(cat("gives id ", id, " to two tokens, \"", *other, "\" and \"", token, "\""));
    set(id, token);
  }
}

void Vocabulary::set(int32_t id, const std::string& token) {
  const auto index = static_cast<size_t>(id);
  if (tokens_.size() <= index) {
    tokens_.resize(index + 1);
    special_.resize(index + 1);
  }
  tokens_[index] = token;
  ids_[token] = id;
}

void Vocabulary::add(const Component& root, const std::vector<AddedToken>& tokens) {
  auto next = static_cast<int32_t>(ids_.size());
  const auto model_size = next;
  int32_t largest = -1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const AddedToken& token = tokens[i];
    const std::optional<int32_t> known = id_of(token.content);
    next = largest >= model_size ? largest + 1 : model_size;
    const int32_t expected = known.value_or(next);
    const auto malformed = [&](const std::string& what) {
      root.malformed(cat("gives added_tokens[", i, "], \"", token.content, "\", the id ", token.id, ", ", what));
    };
    if (known && *known != token.id) malformed(cat("but the vocabulary has ", *known));
    if (token.id != expected) malformed(cat("where it is to be the next free one, ", expected));
    if (const std::string* other = known ? nullptr : token_of(token.id))
      malformed(cat("which is that of \"", *other, "\""));
    set(token.id, token.content);
    special_[static_cast<size_t>(token.id)] = token.special;
    largest = std::max(largest, token.id);
  }
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::token_of(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return id < 0 || index >= tokens_.size() || !tokens_[index] ? nullptr : &*tokens_[index];
}

BpeModel read_bpe_model(const Component& model, const Vocabulary& vocabulary, BpeModel::Alphabet alphabet) {
  require_plain_bpe(model);
  BpeModel made(alphabet);
  const bool fallback = model.flag("byte_fallback", false);
  const bool bytes = alphabet == BpeModel::Alphabet::kBytes;
  (bytes ? read_byte_tokens : read_code_point_tokens)(model, vocabulary, fallback, made);
  if (model.has("unk_token")) {
    const std::optional<int32_t> id = vocabulary.id_of(model.text("unk_token"));
    if (!id) model.malformed(cat("has the unk_token \"", model.text("unk_token"), "\", not in the vocabulary"));
    made.set_unknown(*id, model.flag("fuse_unk", false));
  }
  if (model.flag("ignore_merges", false)) {
    const ByteAlphabet byte_alphabet;
    vocabulary.for_each([&](const std::string& token, int32_t id) {
      const std::optional<std::string> piece = bytes ? byte_alphabet.to_bytes(token) : token;
      if (piece) made.set_whole_piece(*piece, id);
    });
  }
  read_merges(model, vocabulary, made);
  return made;
}

}  // namespace lockstep::data
