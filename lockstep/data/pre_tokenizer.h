// Cuts text into the pieces that BPE works on, as the `pre_tokenizer` of a tokenizer.json says: ByteLevel, Split by a
// regular expression or a string, Digits, Metaspace, or a Sequence of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/regex.h"
#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {

// The pattern of GPT-2: contractions, words, numbers, other signs (each with the space before it), white space.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view piece)>;

  PreTokenizer() = default;  // the text whole
  // DataError LS1211 naming a component that is not supported, LS1210 where one is malformed.
  explicit PreTokenizer(const Component& component);
  // What the trainer writes: ByteLevel with the pattern of GPT-2 and no added space.
  static PreTokenizer gpt2();

  // True where a step is ByteLevel: the model then works on bytes, else on code points.
  bool byte_level() const { return byte_level_; }

  // Gives the pieces of `text` (valid UTF-8) to `sink`, in order; as bytes, also where ByteLevel has written them in
  // its alphabet for a later step. `at_start` = the whole text begins here (Metaspace asks). Thread-safe.
  void split(std::string_view text, const Sink& sink, bool at_start = true) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNone, kUnlessThere, kAtStart };
  struct Step {
    std::optional<Regex> pattern{};  // none = the text whole
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prefix prefix = Prefix::kNone;
    std::string space = " ";  // what is put in front, and what stands for a space
    bool byte_level = false;
  };

  void add(const Component& component);
  static Behavior behavior_of(const Component& component);
  static Step byte_level_step(const Component& component);
  static Step split_step(const Component& component);
  static Step digits_step(const Component& component);
  static Step metaspace_step(const Component& component);
  void run(size_t index, std::string_view text, bool at_start, const Sink& sink) const;
  static void cut(const Step& step, std::string_view text, const Sink& sink);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace lockstep::data
