// Cuts text into the pieces that BPE works on, as the `pre_tokenizer` of a tokenizer.json says: ByteLevel, Split by a
// regular expression or a string, or a Sequence of them.
#pragma once

#include <functional>
#include <optional>
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

  // DataError LS1211 naming a component that is not supported. The last step has to be ByteLevel.
  explicit PreTokenizer(const Component& component);
  // What the trainer writes: ByteLevel with the pattern of GPT-2 and no added space.
  static PreTokenizer gpt2();

  // Gives the pieces of `text` (valid UTF-8) to `sink`, in order. Thread-safe.
  void split(std::string_view text, const Sink& sink) const { run(0, text, sink); }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    std::optional<Regex> pattern{};  // none = the text whole
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;
    bool byte_level = false;
  };

  PreTokenizer() = default;
  void add(const Component& component);
  static Step byte_level_step(const Component& component);
  static Step split_step(const Component& component);
  void run(size_t step, std::string_view text, const Sink& sink) const;
  static void cut(const Step& step, std::string_view text, const Sink& sink);

  std::vector<Step> steps_;
};

}  // namespace lockstep::data
