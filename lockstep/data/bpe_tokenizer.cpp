#include "lockstep/data/bpe_tokenizer.h"

#include "lockstep/base/error.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {
namespace {

Normalizer read_normalizer(const Component& root) {
  return root.has("normalizer") ? Normalizer(root.child("normalizer")) : Normalizer();
}

PreTokenizer read_pre_tokenizer(const Component& root) {
  return root.has("pre_tokenizer") ? PreTokenizer(root.child("pre_tokenizer")) : PreTokenizer();
}

Decoder read_decoder(const Component& root) {
  if (!root.has("decoder")) return Decoder(nullptr);
  const Component decoder = root.child("decoder");
  return Decoder(&decoder);
}

PostProcessor read_post_processor(const Component& root) {
  return root.has("post_processor") ? PostProcessor(root.child("post_processor"), kMaxTokenId) : PostProcessor();
}

// Before anything else is read: a file of another form is told so, not what it lacks.
const Component& checked(const Component& root) {
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  // Both would change ids unseen; whoever encodes knows how many ids there is room for.
  for (const auto* name : {"truncation", "padding"})
    if (root.has(name)) root.unsupported(cat("sets ", name, " (make it null)"));
  const Component model = root.child("model");
  if (model.has("type") && model.type() != "BPE") model.unsupported(cat("has type ", model.type()));
  return root;
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = tokenizer_file(path.string());
  Tokenizer tokenizer(read_json(file), file.string());
  tokenizer.special_ = read_special_ids(
      file.parent_path(), [&](std::string_view token) { return tokenizer.token_id(token); }, tokenizer.vocab_size());
  return tokenizer;
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view origin) {
  return Tokenizer(parse_json(json, origin), std::string(origin));
}

Tokenizer::Tokenizer(const Json& file, const std::string& origin) : Tokenizer(Component(file, "", origin)) {}

Tokenizer::Tokenizer(const Component& root)
    : normalizer_(read_normalizer(checked(root))),
      pre_tokenizer_(read_pre_tokenizer(root)),
      vocabulary_(root.child("model")),
      model_(read_bpe_model(
          root.child("model"), vocabulary_,
          pre_tokenizer_.byte_level() ? BpeModel::Alphabet::kBytes : BpeModel::Alphabet::kCodePoints)),
      decoder_(read_decoder(root)),
      post_processor_(read_post_processor(root)),
      added_tokens_(root.has("added_tokens") ? read_added_tokens(root, kMaxTokenId) : std::vector<AddedToken>()),
      added_(added_tokens_, false, normalizer_),
      added_normalized_(added_tokens_, true, normalizer_) {
  vocabulary_.add(root, added_tokens_);
  for (const int32_t id : post_processor_.ids())
    if (token_of(id) == nullptr) root.malformed(cat("has a post_processor that adds id ", id, ", which is no token"));
  inputs_.resize(static_cast<size_t>(vocab_size()));
  for (int32_t id = 0; id < vocab_size(); ++id)
    if (const std::string* token = token_of(id)) inputs_[static_cast<size_t>(id)] = decoder_.input_of(*token);
  // What a normalized token stood for in the text is its normalized content.
  for (const AddedToken& token : added_tokens_)
    if (token.normalized)
      inputs_[static_cast<size_t>(token.id)] = decoder_.input_of(normalizer_.apply(token.content));
}

Tokenizer::Tokenizer(Tokenizer&& other) noexcept
    : normalizer_(std::move(other.normalizer_)),
      pre_tokenizer_(std::move(other.pre_tokenizer_)),
      vocabulary_(std::move(other.vocabulary_)),
      model_(std::move(other.model_)),
      decoder_(std::move(other.decoder_)),
      post_processor_(std::move(other.post_processor_)),
      added_tokens_(std::move(other.added_tokens_)),
      added_(std::move(other.added_)),
      added_normalized_(std::move(other.added_normalized_)),
      inputs_(std::move(other.inputs_)),
      special_(std::move(other.special_)),
      scratch_(other.scratch_.exchange(nullptr)) {}

Tokenizer::~Tokenizer() {
  delete scratch_.load();
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (!is_valid_utf8(text)) return encode(replace_invalid_utf8(text), options);
  std::unique_ptr<BpeScratch> scratch(scratch_.exchange(nullptr));
  if (!scratch) scratch = std::make_unique<BpeScratch>();
  const uint64_t steps_before = scratch->steps;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  scratch->steps += added_.cut(
      text, [&](int32_t id) { ids.push_back(id); },
      [&](std::string_view part) {
        const bool at_start = part.data() == text.data();
        if (normalizer_.empty()) return encode_normalized(part, at_start, *scratch, ids);
        encode_normalized(normalizer_.apply(part), at_start, *scratch, ids);
      });
  if (options.steps != nullptr) *options.steps += scratch->steps - steps_before;
  delete scratch_.exchange(scratch.release());
  return options.add_special_tokens ? post_processor_.apply(std::move(ids)) : ids;
}

void Tokenizer::encode_normalized(std::string_view text, bool at_start, BpeScratch& scratch,
                                  std::vector<int32_t>& ids) const {
  scratch.steps += added_normalized_.cut(
      text, [&](int32_t id) { ids.push_back(id); },
      [&](std::string_view part) { encode_plain(part, at_start && part.data() == text.data(), scratch, ids); });
}

void Tokenizer::encode_plain(std::string_view text, bool at_start, BpeScratch& scratch,
                             std::vector<int32_t>& ids) const {
  pre_tokenizer_.split(text, [&](std::string_view piece) { model_.encode(piece, scratch, ids); }, at_start);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (token_of(id) == nullptr)
    throw DataError({.code = "LS1212",
                     .what = cat("token id ", id, " is not in the vocabulary (", vocab_size(), " ids)"),
                     .way_out = "are the ids from another tokenizer?"});
  return inputs_[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  token_bytes(id);  // refuses ids that are none
  return vocabulary_.is_special(id);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string out;
  if (decoder_.only_bytes()) {
    for (const int32_t id : ids)
      if (!leaves_out(id, options)) out += token_bytes(id);
    return is_valid_utf8(out) ? out : replace_invalid_utf8(out);
  }
  Decoder::Stream stream(decoder_);
  for (const int32_t id : ids)
    if (!leaves_out(id, options)) stream.push(token_bytes(id), out);
  stream.finish(out);
  return out;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  if (special_.eos) return special_.eos;
  return special_.stop.empty() ? token_id(kEndOfText) : special_.stop.front();
}

std::vector<int32_t> Tokenizer::eos_ids() const {
  if (!special_.stop.empty()) return special_.stop;
  const std::optional<int32_t> id = eos_id();
  return id ? std::vector<int32_t>{*id} : std::vector<int32_t>();
}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  if (!tokenizer_.leaves_out(id, options_)) stream_.push(tokenizer_.token_bytes(id), out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  stream_.finish(out);
  return out;
}

}  // namespace lockstep::data
