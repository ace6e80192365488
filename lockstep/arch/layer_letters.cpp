#include "lockstep/arch/layer_letters.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

using config::BranchOrder;
using config::NormPlace;

constexpr std::string_view kAttention = "attention", kMlp = "mlp";

// None for a layer without one; of two the second stands beside the first, behind one norm (Zuo et al. 2025, Falcon-H1).
BlockSpec mixers_of(char letter, const config::ModelSection& section) {
  if (letter == '-') return {};
  const Branch state_space{.kind = std::string(kStateSpace), .name = "ssm"};
  if (letter == 'M') return {state_space};
  Branch attention{.kind = std::string(kAttention), .name = std::string(kAttention)};
  if (letter == 'H') {
    attention.beside = true, attention.norm_before = false;
    return {state_space, attention};
  }
  if (letter == 'W') attention.window = section.window.value();
  if (letter == 'N') attention.rotation = Rotation::kNone;
  return {attention};
}

BlockSpec block_of(char mixer, char feed_forward, const config::ModelSection& section) {
  const NormPlace norm = section.norm.value_or(NormPlace::kBefore);
  const BranchOrder order = section.branches.value_or(BranchOrder::kSequential);
  BlockSpec block = mixers_of(mixer, section);
  const bool follows = !block.empty();
  if (feed_forward != '-') block.push_back({.kind = std::string(kMlp), .name = std::string(kMlp)});
  for (Branch& branch : block) {
    branch.norm_before = norm != NormPlace::kBehind && !branch.beside;
    branch.norm_behind = norm != NormPlace::kBefore;
  }
  if (!follows || feed_forward == '-' || order == BranchOrder::kSequential) return block;
  Branch& second = block.back();
  second.beside = true;
  second.norm_before = second.norm_before && order != BranchOrder::kParallel;
  return block;
}

// Of the branches before the MLP.
std::optional<char> mixer_letter(std::span<const Branch> mixers) {
  if (mixers.empty()) return '-';
  const Branch& branch = mixers.back();
  if (mixers.size() == 2) {
    const bool both = mixers.front().kind == kStateSpace && mixers.front().name == "ssm" && !mixers.front().beside && branch.shares_input() &&
                      mixer_letter(mixers.last(1)) == 'A';
    return both ? std::optional('H') : std::nullopt;
  }
  if (mixers.size() > 2) return std::nullopt;
  if (branch.kind == kStateSpace && branch.name == "ssm") return 'M';
  if (branch.kind != kAttention || branch.name != kAttention) return std::nullopt;
  if (branch.rotation == Rotation::kNone) return branch.window ? std::nullopt : std::optional('N');
  return branch.window.value_or(0) > 0 ? 'W' : 'A';
}

// "attention beside mlp (same norm)".
std::string text_of(const BlockSpec& block) {
  std::string text;
  for (const Branch& branch : block) {
    if (!text.empty()) text += branch.beside ? " beside " : " then ";
    text += branch.name;
    if (branch.norm_behind)
      text += branch.norm_before ? " (norms before and behind)" : " (norm behind)";
    else if (!branch.norm_before)
      text += branch.beside ? " (same norm)" : " (no norm)";
  }
  return text;
}

// Where norms stand, and whether branches stand beside each other: of the first list that has most branches.
std::string style_text(const ModelConfig& model) {
  const BlockSpec& block = *std::ranges::max_element(model.blocks, {}, &BlockSpec::size);
  std::string text;
  if (block.front().norm_behind) text += block.front().norm_before ? ", norms before and behind" : ", norms behind";
  if (block.back().beside) text += block.back().shares_input() ? ", parallel by one norm" : ", parallel";
  return text;
}

std::string windows_text(const ModelConfig& model) {
  std::set<int64_t> windows;
  for (const BlockSpec& block : model.blocks)
    for (const Branch& branch : block)
      if (branch.window.value_or(0) > 0) windows.insert(*branch.window);
  std::vector<std::string> texts;
  for (const int64_t window : windows) texts.push_back(cat(window));
  return texts.empty() ? "" : cat(texts.size() == 1 ? " (window " : " (windows ", join(texts, ", "), ")");
}

bool all_are(const std::string& letters, char letter) { return letters.find_first_not_of(letter) == std::string::npos; }

}  // namespace

std::vector<BlockSpec> blocks_of(const config::ModelSection& section, int64_t layers) {
  const std::string mixers = section.mixers.value_or("A"), feed_forwards = section.feed_forwards.value_or("D");
  LOCKSTEP_CHECK(!mixers.empty() && !feed_forwards.empty(), "no letter for a layer");
  const size_t period = std::min(std::lcm(mixers.size(), feed_forwards.size()), static_cast<size_t>(std::max<int64_t>(1, layers)));
  std::vector<BlockSpec> blocks;
  for (size_t i = 0; i < period; ++i)
    blocks.push_back(block_of(mixers[i % mixers.size()], feed_forwards[i % feed_forwards.size()], section));
  if (std::ranges::count(blocks, blocks.front()) == std::ssize(blocks)) blocks.resize(1);
  if (blocks.size() == 1 && blocks.front() == usual_block()) blocks.clear();
  return blocks;
}

std::vector<int> layers_without_experts(const std::string& feed_forwards, int64_t layers) {
  std::vector<int> dense;
  for (int block = 0; block < static_cast<int>(layers); ++block)
    if (feed_forwards[static_cast<size_t>(block) % feed_forwards.size()] != 'E') dense.push_back(block);
  return dense;
}

std::optional<LayerLetters> letters_of(const ModelConfig& model) {
  LayerLetters letters;
  for (const BlockSpec& block : model.blocks.empty() ? std::vector<BlockSpec>{usual_block()} : model.blocks) {
    const bool feeds = !block.empty() && block.back().kind == kMlp && block.back().name == kMlp;
    const std::optional<char> letter = mixer_letter(std::span(block).first(block.size() - (feeds ? 1 : 0)));
    if (!letter) return std::nullopt;
    letters.mixers += *letter;
    letters.feed_forwards += feeds ? 'D' : '-';
  }
  return letters;
}

std::string blocks_text(const ModelConfig& model) {
  if (model.blocks.empty()) return "";
  const std::optional<LayerLetters> letters = letters_of(model);
  if (!letters || (all_are(letters->mixers, 'A') && all_are(letters->feed_forwards, 'D'))) {
    std::vector<std::string> blocks;
    for (const BlockSpec& block : model.blocks) blocks.push_back(text_of(block));
    return " of " + join(blocks, " / ");
  }
  const bool states_alone = all_are(letters->mixers, 'M');  // whose heads are told
  const std::string mixers = states_alone ? "" : cat(", mixers ", letters->mixers, windows_text(model));
  const bool alike = all_are(letters->feed_forwards, 'D') || (states_alone && all_are(letters->feed_forwards, '-'));
  return cat(mixers, alike ? "" : cat(", feed_forwards ", letters->feed_forwards), style_text(model));
}

bool lists_kind(const ModelConfig& model, std::string_view kind) {
  const auto lists = [&](const BlockSpec& block) { return std::ranges::count(block, kind, &Branch::kind) > 0; };
  return model.blocks.empty() ? lists(usual_block()) : std::ranges::any_of(model.blocks, lists);
}

bool has_attention(const ModelConfig& model) {
  const auto feeds_or_scans = [](const Branch& branch) { return branch.kind == kStateSpace || branch.kind == kMlp || branch.kind == "experts"; };
  return model.blocks.empty() ||
         std::ranges::any_of(model.blocks, [&](const BlockSpec& block) { return !std::ranges::all_of(block, feeds_or_scans); });
}

int64_t dense_mlps(const ModelConfig& model) {
  int64_t layers = 0;
  for (int block = 0; block < static_cast<int>(model.layers); ++block) {
    if (model.has_experts() && !model.experts.is_dense(block)) continue;
    const BlockSpec& listed = model.blocks.empty() ? usual_block() : model.blocks[static_cast<size_t>(block) % model.blocks.size()];
    layers += std::ranges::count(listed, kMlp, &Branch::kind) > 0 ? 1 : 0;
  }
  return layers;
}

}  // namespace lockstep::arch
