// model.mixers and model.feed_forwards: what is wrong with their letters, and which keys no layer reads.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::arch {
namespace {

using config::LayoutProblem;
using config::left_out;
using config::Suggestion;
using config::values_of;

struct Letters {
  const char* name;  // "mixers"
  std::string_view known;
  const std::optional<std::string>& text;   // with that of the preset
  const std::optional<std::string>& own;    // of the section
  std::string key() const { return cat("model.", name); }
  std::string shown() const { return cat(name, "(", *text, ")"); }
};

bool has(const std::optional<std::string>& text, char letter) { return text && text->find(letter) != std::string::npos; }

std::string with(std::string text, char old, char letter) {
  std::ranges::replace(text, old, letter);
  return text;
}

class LetterJudge {
 public:
  LetterJudge(const config::ModelSection& section, const config::ModelSection& given, const config::ModelSection& preset)
      : section_(section), given_(given), preset_(preset), layers_(given.layers.value_or(preset.layers.value_or(1))) {}

  std::vector<LayoutProblem> problems() && {
    const Letters mixers{"mixers", config::kMixers, given_.mixers, section_.mixers};
    const Letters feed_forwards{"feed_forwards", config::kFeedForwards, given_.feed_forwards, section_.feed_forwards};
    for (const Letters& letters : {mixers, feed_forwards}) judge(letters);
    if (!problems_.empty()) return std::move(problems_);
    judge_empty_layers();
    judge_windows();
    judge_experts();
    return std::move(problems_);
  }

 private:
  void add(const std::string& key, std::string what, std::vector<Suggestion> ways) {
    problems_.push_back({.key = key, .what = std::move(what), .ways = std::move(ways), .depth = kFamilyDepth});
  }

  void judge(const Letters& letters) {
    if (!letters.text) return;
    const std::string key = letters.key(), &text = *letters.text;
    if (text.empty()) return add(key, cat(key, " = \"\" names no layer"), {left_out(key)});
    if (const size_t unknown = text.find_first_not_of(letters.known); unknown != std::string::npos) {
      std::string upper = text;
      std::ranges::transform(upper, upper.begin(), [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
      std::vector<std::string> known;
      for (const char letter : letters.known) known.emplace_back(1, letter);
      return add(key, cat(key, " = \"", text, "\": '", text.substr(unknown, 1), "' is none of ", join(known, ", ")),
                 values_of(key, {upper}) + std::vector{left_out(key)});
    }
    const auto length = static_cast<int64_t>(text.size());
    if (letters.own && length > layers_)
      add(key, cat(letters.shown(), " names ", length, " layers, but layers(", layers_, ")"),
          values_of(key, {text.substr(0, static_cast<size_t>(layers_))}) + values_of("model.layers", {cat(length)}));
  }

  void judge_empty_layers() {
    const std::string mixers = given_.mixers.value_or("A"), feed_forwards = given_.feed_forwards.value_or("D");
    const auto period = std::min(layers_, static_cast<int64_t>(std::lcm(mixers.size(), feed_forwards.size())));
    for (size_t i = 0; i < static_cast<size_t>(period); ++i) {
      if (mixers[i % mixers.size()] != '-' || feed_forwards[i % feed_forwards.size()] != '-') continue;
      return add("model.mixers", cat("block ", i, " of mixers(", mixers, ") and feed_forwards(", feed_forwards, ") has neither a mixer nor a feed-forward"),
                 {left_out("model.feed_forwards"), left_out("model.mixers")});
    }
  }

  void judge_windows() {
    if (!has(given_.mixers, 'W') || given_.window) return;
    const int64_t length = given_.max_seq_len.value_or(preset_.max_seq_len.value_or(1024));
    add("model.window", cat("layers W of mixers(", *given_.mixers, ") need model.window"),
        values_of("model.window", {cat(std::max<int64_t>(1, length / 2))}) + values_of("model.mixers", {with(*given_.mixers, 'W', 'A')}));
  }

  void judge_experts() {
    if (!given_.feed_forwards) return;
    const std::string& text = *given_.feed_forwards;
    const bool experts = section_.experts || preset_.experts;
    if (!experts && has(text, 'E'))
      add("model.feed_forwards", cat("layers E of feed_forwards(", text, ") have experts, but model.experts is not given"),
          values_of("model.experts", {"8"}) + values_of("model.feed_forwards", {with(text, 'E', 'D')}));
    if (experts && !has(text, 'E'))
      add("model.experts", cat("no layer of feed_forwards(", text, ") is E, and so none has the model's experts"),
          values_of("model.feed_forwards", {with(text, 'D', 'E')}) + std::vector{left_out("model.feed_forwards"), left_out("model.experts")});
    if (section_.dense_layers)
      add("model.dense_layers", cat("dense_layers beside feed_forwards(", text, "), which says which layers have experts"),
          {left_out("model.dense_layers"), left_out("model.feed_forwards")});
  }

  const config::ModelSection &section_, &given_, &preset_;
  const int64_t layers_;
  std::vector<LayoutProblem> problems_{};
};

}  // namespace

std::vector<LayoutProblem> letter_problems(const config::ModelSection& section, const config::ModelSection& given,
                                           const config::ModelSection& preset) {
  return LetterJudge(section, given, preset).problems();
}

std::vector<LayoutProblem> problems_of_branches(const config::ModelSection& section, const ModelConfig& model) {
  std::vector<LayoutProblem> problems;
  const auto unused = [&](const char* key, bool given, const char* of, std::vector<Suggestion> ways = {}) {
    if (!given) return;
    problems.push_back({.key = key, .what = cat(key, " is of ", of, ", which no layer has"), .ways = std::move(ways) + std::vector{left_out(key)}, .depth = kSizesDepth});
  };
  if (!has_attention(model)) {
    unused("model.heads", section.heads.value_or(1) != 1, "attention");
    unused("model.kv_heads", section.kv_heads.value_or(1) != 1, "attention");
    unused("model.head_size", section.head_size.has_value(), "attention");
    unused("model.window", section.window.has_value(), "attention");
    unused("model.rope_theta", section.rope_theta.has_value(), "attention");
  }
  if (dense_mlps(model) == 0 && !model.has_experts()) unused("model.ffn", section.ffn.has_value(), "an MLP");
  if (!model.has_state_space() && !lists_kind(model, kStateSpace))
    visit_state_sizes(section, [&](const char* name, std::optional<int64_t> size, int64_t) {
      const std::string key = cat("model.", name);
      unused(key.c_str(), size.has_value(), "state spaces", values_of("model.mixers", {"M"}));
    });
  const bool beside = section.branches.value_or(config::BranchOrder::kSequential) != config::BranchOrder::kSequential;
  const auto pairs = [](const BlockSpec& block) { return block.size() > 1; };
  if (beside && !model.blocks.empty() && std::ranges::none_of(model.blocks, pairs))
    unused("model.branches", true, "a mixer and what follows it");
  return problems;
}

}  // namespace lockstep::arch
