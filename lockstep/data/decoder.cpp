#include "lockstep/data/decoder.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int64_t kMostStripped = 1 << 20;

// "<0xE2>" -> 0xE2.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const size_t digit = std::string_view("0123456789abcdefABCDEF").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(digit < 16 ? digit : digit - 6);
  }
  return static_cast<char>(value);
}

// What a run of byte tokens is: their text, or U+FFFD for each where they form none.
std::string text_of_bytes(const std::string& bytes) {
  if (is_valid_utf8(bytes)) return bytes;
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) out += kReplacement;
  return out;
}

// How many times `text` starts, or ends, with `letter`; at most `most`.
size_t run_at_start(std::string_view text, std::string_view letter, size_t most) {
  size_t count = 0;
  while (count < most && text.substr(count * letter.size()).starts_with(letter)) ++count;
  return count;
}
size_t run_at_end(std::string_view text, std::string_view letter, size_t most) {
  size_t count = 0;
  while (count < most && text.substr(0, text.size() - count * letter.size()).ends_with(letter)) ++count;
  return count;
}

}  // namespace

Decoder::Decoder(const Component* component) {
  if (component == nullptr) {
    stages_.push_back({.kind = Kind::kJoin});
  } else {
    add(*component);
  }
}

void Decoder::add(const Component& component) {
  if (component.type() == "Sequence") {
    component.allow_only({"type", "decoders"});
    for (const Component& part : component.list("decoders")) add(part);
    return;
  }
  Stage stage = read(component);
  if (!stages_.empty()) {
    const Stage& before = stages_.back();
    stage.joined = before.joined || before.kind == Kind::kByteLevel || before.kind == Kind::kFuse;
  }
  stages_.push_back(std::move(stage));
}

Decoder::Stage Decoder::read(const Component& component) {
  const std::string type = component.type();
  if (type == "ByteLevel") {
    component.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {.kind = Kind::kByteLevel};
  }
  if (type == "ByteFallback" || type == "Fuse") {
    component.allow_only({"type"});
    return {.kind = type == "Fuse" ? Kind::kFuse : Kind::kByteFallback};
  }
  if (type == "Strip") {
    component.allow_only({"type", "content", "start", "stop"});
    return {.kind = Kind::kStrip,
            .letter = component.letter("content"),
            .from_start = static_cast<size_t>(component.integer("start", 0, kMostStripped)),
            .from_end = static_cast<size_t>(component.integer("stop", 0, kMostStripped))};
  }
  if (type == "Replace") {
    component.allow_only({"type", "pattern", "content"});
    return {.kind = Kind::kReplace, .pattern = component.pattern("pattern"), .text = component.text("content")};
  }
  if (type != "Metaspace") component.unsupported(cat("has type ", type));
  component.allow_only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string scheme = component.has("prepend_scheme") ? component.text("prepend_scheme") : "always";
  if (scheme != "always" && scheme != "first" && scheme != "never")
    component.unsupported(cat("has prepend_scheme ", scheme));
  return {.kind = Kind::kMetaspace,
          .letter = component.letter("replacement"),
          .drops_first = component.flag("add_prefix_space", true) && scheme != "never"};
}

std::string Decoder::input_of(const std::string& token) const {
  if (stages_.empty() || stages_.front().kind != Kind::kByteLevel) return token;
  return alphabet_.to_bytes(token).value_or(token);
}

// What a step makes of one token.
std::string Decoder::whole(const Stage& stage, std::string_view piece, bool is_first) const {
  switch (stage.kind) {
    case Kind::kByteLevel: {
      const std::string token(piece);
      return replace_invalid_utf8(alphabet_.to_bytes(token).value_or(token));
    }
    case Kind::kByteFallback: {
      const std::optional<char> byte = byte_of(piece);
      return byte ? text_of_bytes(std::string(1, *byte)) : std::string(piece);
    }
    case Kind::kStrip: {
      piece.remove_prefix(run_at_start(piece, stage.letter, stage.from_start) * stage.letter.size());
      piece.remove_suffix(run_at_end(piece, stage.letter, stage.from_end) * stage.letter.size());
      return std::string(piece);
    }
    case Kind::kReplace:
      return replace_all(*stage.pattern, piece, stage.text);
    case Kind::kMetaspace: {
      std::string out;
      for (size_t at = 0; at < piece.size();) {
        const size_t next = piece.find(stage.letter, at);
        out += piece.substr(at, next - at);
        if (next == std::string_view::npos) break;
        if (!is_first || !stage.drops_first) out += ' ';
        at = next + stage.letter.size();
      }
      return out;
    }
    default:
      return std::string(piece);
  }
}

Decoder::Stream::Stream(const Decoder& decoder) : decoder_(&decoder), states_(decoder.stages_.size()) {}

void Decoder::Stream::push(std::string_view input, std::string& out) {
  feed(0, input, out);
}

void Decoder::Stream::finish(std::string& out) {
  for (size_t stage = 0; stage < states_.size(); ++stage) end(stage, out);
  std::fill(states_.begin(), states_.end(), State());
}

void Decoder::Stream::feed(size_t index, std::string_view piece, std::string& out) {
  if (index == states_.size()) {
    out += piece;
    return;
  }
  const Stage& stage = decoder_->stages_[index];
  State& state = states_[index];
  const bool is_first = state.tokens++ == 0;
  switch (stage.kind) {
    case Kind::kFuse:
      return feed(index + 1, piece, out);
    case Kind::kJoin:
      return feed(index + 1, is_first ? std::string(piece) : cat(" ", piece), out);
    case Kind::kMetaspace:
      return feed(index + 1, decoder_->whole(stage, piece, is_first || stage.joined), out);
    case Kind::kByteLevel:
      if (!stage.joined) return feed_bytes(index, piece, out);
      break;
    case Kind::kByteFallback:
      if (!stage.joined) return feed_byte_token(index, piece, out);
      break;
    case Kind::kStrip:
      if (stage.joined) return feed_stripped(index, piece, out);
      return feed(index + 1, decoder_->whole(stage, piece, is_first), out);
    case Kind::kReplace:
      if (!stage.joined) return feed(index + 1, decoder_->whole(stage, piece, is_first), out);
      break;
  }
  state.held += piece;  // has to see the text whole
}

// Only the last sequence can be incomplete; it is at most three bytes long.
void Decoder::Stream::feed_bytes(size_t index, std::string_view piece, std::string& out) {
  std::string& held = states_[index].held;
  held += index == 0 ? std::string(piece) : decoder_->alphabet_.to_bytes(piece).value_or(std::string(piece));
  size_t whole = held.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held.size()); ++back)
    if (utf8_sequence(held, held.size() - back).truncated) whole = held.size() - back;
  feed(index + 1, replace_invalid_utf8(std::string_view(held).substr(0, whole)), out);
  held.erase(0, whole);
}

void Decoder::Stream::feed_byte_token(size_t index, std::string_view piece, std::string& out) {
  if (const std::optional<char> byte = byte_of(piece)) {
    states_[index].held += *byte;
    return;
  }
  end(index, out);
  feed(index + 1, piece, out);
}

void Decoder::Stream::feed_stripped(size_t index, std::string_view piece, std::string& out) {
  const Stage& stage = decoder_->stages_[index];
  State& state = states_[index];
  if (!state.started) {
    const size_t count = run_at_start(piece, stage.letter, stage.from_start - state.stripped);
    state.stripped += count;
    piece.remove_prefix(count * stage.letter.size());
    state.started = !piece.empty();
  }
  state.held += piece;
  const size_t kept = run_at_end(state.held, stage.letter, stage.from_end) * stage.letter.size();
  feed(index + 1, state.held.substr(0, state.held.size() - kept), out);
  state.held.erase(0, state.held.size() - kept);
}

void Decoder::Stream::end(size_t index, std::string& out) {
  const Stage& stage = decoder_->stages_[index];
  std::string held = std::exchange(states_[index].held, std::string());
  if (stage.kind == Kind::kStrip || held.empty()) return;  // what Strip holds is what it takes away
  if (stage.joined) {
    held = decoder_->whole(stage, held, true);
  } else if (stage.kind == Kind::kByteFallback) {
    held = text_of_bytes(held);
  } else {
    held = replace_invalid_utf8(held);
  }
  feed(index + 1, held, out);
}

}  // namespace lockstep::data
