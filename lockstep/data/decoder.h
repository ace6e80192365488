// How tokens become text again: the `decoder` of a tokenizer.json. ByteLevel, ByteFallback, Fuse, Strip, Replace,
// Metaspace, or a Sequence of them; none at all puts a space between tokens, as Hugging Face tokenizers does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/regex.h"
#include "lockstep/data/tokenizer_json.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {

// Immutable; any number of threads may use one.
class Decoder {
 public:
  // `component` null = the file has no decoder. DataError LS1211 naming a component that is not supported, LS1210 where
  // one is malformed.
  explicit Decoder(const Component* component);

  // What the first step takes in place of a token: ByteLevel its bytes, every other step the token as it is spelled.
  std::string input_of(const std::string& token) const;
  // True where decoding is joining the inputs and repairing UTF-8.
  bool only_bytes() const { return stages_.size() == 1 && stages_.front().kind == Kind::kByteLevel; }

  // One text in the making. Holds back only what later tokens may still change: an incomplete UTF-8 sequence, a run of
  // byte tokens, spaces that may be the last; everything, where a step behind Fuse has to see the text whole.
  class Stream {
   public:
    explicit Stream(const Decoder& decoder);
    // `input` is input_of(token). Appends to `out` what is now certain.
    void push(std::string_view input, std::string& out);
    // Appends the rest; the stream starts anew.
    void finish(std::string& out);

   private:
    struct State {
      std::string held;
      size_t tokens = 0;    // that have come
      size_t stripped = 0;  // from the front
      bool started = false;  // a character that is not stripped has come
    };
    void feed(size_t stage, std::string_view piece, std::string& out);
    void end(size_t stage, std::string& out);
    void feed_bytes(size_t stage, std::string_view piece, std::string& out);
    void feed_byte_token(size_t stage, std::string_view piece, std::string& out);
    void feed_stripped(size_t stage, std::string_view piece, std::string& out);
    const Decoder* decoder_;
    std::vector<State> states_;
  };

 private:
  enum class Kind { kByteLevel, kByteFallback, kFuse, kStrip, kReplace, kMetaspace, kJoin };
  struct Stage {
    Kind kind = Kind::kFuse;
    bool joined = false;  // what comes in is one text, in parts, and not tokens
    std::string letter{};                // of Strip and Metaspace
    size_t from_start = 0, from_end = 0;  // of Strip: at most so many
    std::optional<Regex> pattern{};      // of Replace
    std::string text{};
    bool drops_first = false;  // Metaspace: no space in the first token
  };
  void add(const Component& component);
  static Stage read(const Component& component);
  std::string whole(const Stage& stage, std::string_view piece, bool is_first) const;

  std::vector<Stage> stages_;
  ByteAlphabet alphabet_;
};

}  // namespace lockstep::data
