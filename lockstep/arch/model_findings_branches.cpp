// What in the branches of a model's layers contradicts itself, or the rest of it: windows, rotations, state spaces.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::arch {
namespace {

using config::LayoutProblem;
using config::left_out;
using config::Suggestion;
using config::values_of;

const char* const kMixersKey = "model.mixers";
const char* const kFileKey = "model.from";  // of what a file alone can say

class BranchJudge {
 public:
  BranchJudge(const ModelConfig& model, bool with_ways) : m_(model), with_ways_(with_ways) {}

  std::vector<LayoutProblem> problems() && {
    for (size_t i = 0; i < m_.blocks.size(); ++i) judge_block(cat("blocks[", i, "]"), m_.blocks[i]);
    judge_family();
    judge_attention();
    judge_numbers();
    judge_state_space();
    return std::move(problems_);
  }

 private:
  void expect(bool holds, const std::string& key, std::string what, std::vector<Suggestion> ways = {}) {
    if (holds) return;
    problems_.push_back({.key = key, .what = std::move(what), .depth = kSizesDepth});
    if (with_ways_) problems_.back().ways = std::move(ways);
  }

  void judge_block(const std::string& where, const BlockSpec& block) {
    std::set<int64_t> windows;
    for (const Branch& branch : block) {
      const bool attention = branch.kind == "attention", turned = branch.rotation != Rotation::kUsual;
      const std::string name = cat(where, ".", branch.name);
      expect(attention || (!branch.window && !turned), kMixersKey, cat(name, ": a window or a rotation, but its kind is ", branch.kind));
      if (!attention) continue;
      windows.insert(m_.window_of(branch));
      expect(branch.window.value_or(0) >= 0, kMixersKey, cat(name, ": a window of ", branch.window.value_or(0), " tokens"));
      expect(!m_.has_latent() || (!branch.window && !turned), kMixersKey,
             cat(name, ": latent attention has no window and no rotation of one layer: its layers are A"),
             {left_out(kMixersKey), left_out("model.kv_lora_rank")});
      expect(!turned || !m_.traits().learned_positions, kMixersKey,
             cat(name, ": another rotation than all layers, but family ", family_name(m_.family), " has learned positions and turns nothing"),
             values_of("model.family", {"llama"}) + std::vector{left_out(kMixersKey)});
      expect(branch.rotation != Rotation::kLocal || m_.rope_local_theta > 0, kFileKey,
             cat(name, ": a local rotation, but rope_local_theta(", number_text(m_.rope_local_theta), ")"));
    }
    expect(windows.size() <= 1, kMixersKey, cat(where, ": attentions of ", windows.size(), " windows in one block"));
  }

  void judge_family() {
    const auto scans = [](const Branch& branch) { return branch.kind == kStateSpace; };
    const bool alone = !m_.blocks.empty() && std::ranges::all_of(m_.blocks, [&](const BlockSpec& block) { return std::ranges::all_of(block, scans); });
    expect(m_.family != Family::kMamba2 || alone, kMixersKey, "family mamba2 has state spaces alone: mixers \"M\" and feed_forwards \"-\"",
           values_of("model.family", {"llama"}) +
               std::vector<Suggestion>{{.changes = {{.key = kMixersKey}, {.key = "model.feed_forwards"}}, .text = "leave mixers and feed_forwards out"}});
  }

  void judge_attention() {
    expect(!m_.has_latent() || has_attention(m_), kMixersKey, "latent attention, but no layer of mixers is A", {left_out(kMixersKey)});
    expect(m_.rotary_size >= 0 && (m_.rotary_size <= m_.head_size || !has_attention(m_)), kFileKey,
           cat("rotary_size(", m_.rotary_size, ") is not within 0 to head_size(", m_.head_size, ")"));
    expect(m_.rotary_size == 0 || (!m_.traits().learned_positions && !m_.has_latent()), kFileKey,
           cat("rotary_size(", m_.rotary_size, "), but ", m_.has_latent() ? "latent attention turns qk_rope_head_dim" : "positions are learned"));
    expect(!m_.attention_sinks || !m_.has_latent(), kFileKey, "attention_sinks are not of latent attention");
    expect(m_.attention_scale == 0 || !m_.has_latent(), kFileKey, "attention_scale is not of latent attention");
  }

  void judge_numbers() {
    const auto sound = [](double value, double least) { return std::isfinite(value) && value >= least; };
    expect(sound(m_.attention_scale, 0), kFileKey, cat("attention_scale(", number_text(m_.attention_scale), ") is below 0"));
    expect(sound(m_.rope_local_theta, 0), kFileKey, cat("rope_local_theta(", number_text(m_.rope_local_theta), ") is below 0"));
    expect(sound(m_.embedding_scale, 0) && m_.embedding_scale > 0, kFileKey,
           cat("embedding_scale(", number_text(m_.embedding_scale), ") is not above 0"));
    judge_multipliers();
  }

  // A bias behind a factor of what goes into its linear, or before one of what comes out, would not be multiplied as it is.
  void judge_multipliers() {
    const Multipliers& by = m_.multipliers;
    for (const double factor : {by.attention_in, by.key, by.attention_out, by.state_in, by.state_out, by.z, by.x, by.b, by.c, by.dt, by.gate,
                                by.down, by.logits})
      expect(std::isfinite(factor) && factor > 0, kFileKey, cat("a multiplier of ", number_text(factor), " is not above 0"));
    const bool attention = by.attention_in != 1 || by.attention_out != 1, feeds = by.gate != 1 || by.down != 1;
    expect(!attention || !(m_.qkv_bias || m_.out_bias), kFileKey, "multipliers of attention beside its biases");
    expect((by.state_in == 1 && by.state_out == 1) || !m_.state_space.projection_bias, kFileKey, "multipliers of a state space beside biases of its projections");
    expect(!feeds || (m_.gated_mlp() && !m_.mlp_bias), kFileKey, "multipliers of an MLP that has biases, or no gate");
    expect(!feeds || !m_.has_experts(), kFileKey, "multipliers of an MLP are not of experts");
    expect((!attention && by.key == 1) || !m_.has_latent(), kFileKey, "multipliers of attention are not of latent attention");
  }

  void judge_state_space() {
    const bool listed = lists_kind(m_, kStateSpace);
    if (!listed) return expect(!m_.has_state_space(), kMixersKey, "sizes of a state space, but no layer has one");
    if (missing_sizes() || ranges()) return;
    const StateSpaceSizes& s = m_.state_space;
    const int64_t states = saturating_mul(saturating_mul(s.heads, s.head_size), s.state);
    expect(s.heads % s.groups == 0, "model.state_groups", cat("state_heads(", s.heads, ") % state_groups(", s.groups, ") = ", s.heads % s.groups),
           config::divisors_near("model.state_groups", s.heads, s.groups) + config::multiples_near("model.state_heads", s.groups, s.heads));
    expect(states <= kMostStates, "model.state_size",
           cat("state_heads(", s.heads, ") x state_head_size(", s.head_size, ") x state_size(", s.state, ") = ", states, ", more than ", kMostStates),
           config::powers_below("model.state_size", std::max<int64_t>(1, kMostStates / s.inner())) +
               config::powers_below("model.state_heads", std::max<int64_t>(1, kMostStates / (s.head_size * s.state)), s.groups));
    expect(s.norm_groups >= 0 && (s.norm_groups == 0 || s.inner() % s.norm_groups == 0), kFileKey,
           cat("norm_groups(", s.norm_groups, ") do not divide state_heads(", s.heads, ") x state_head_size(", s.head_size, ")"));
    const bool unlimited = s.step_least == 0 && s.step_most == 0;
    expect(unlimited || (s.step_least >= 0 && s.step_most > s.step_least), kFileKey,
           cat("limits of a step ", number_text(s.step_least), " and ", number_text(s.step_most)));
  }

  // Those without a usual value: all at once.
  bool missing_sizes() {
    const StateSpaceSizes& s = m_.state_space;
    const int64_t width = s.head_size > 0 ? s.head_size : m_.hidden % 32 == 0 ? 64 : 2;
    const int64_t heads = std::max<int64_t>(1, 2 * m_.hidden / width);
    Suggestion usual;
    std::vector<std::string> names, texts;
    const auto add = [&](const char* name, int64_t size, int64_t value) {
      if (size != 0) return;
      names.push_back(cat("model.", name));
      usual.changes.push_back({cat("model.", name), cat(value)});
      texts.push_back(cat(name, " = ", value));
    };
    add("state_heads", s.heads, heads);
    add("state_head_size", s.head_size, width);
    add("state_size", s.state, 128);
    if (names.empty()) return false;
    usual.text = cat("give them, as ", join(texts, " and "));
    expect(false, names.front(), cat("state spaces of mixers need ", join(names, ", "), " as well"), {std::move(usual), left_out(kMixersKey)});
    return true;
  }

  bool ranges() {
    const size_t before = problems_.size();
    visit_state_sizes(m_, [&](const char* name, int64_t size, int64_t least) {
      const int64_t most = most_of_size(name);
      const std::string key = cat("model.", name);
      expect(size >= least && size <= most, key, cat(name, "(", size, ") is not within ", least, " to ", most),
             values_of(key, {cat(size < least ? least : most)}) + std::vector{left_out(key)});
    });
    return problems_.size() > before;
  }

  const ModelConfig& m_;
  const bool with_ways_;
  std::vector<LayoutProblem> problems_{};
};

}  // namespace

std::vector<LayoutProblem> branch_contradictions(const ModelConfig& model, bool with_ways) { return BranchJudge(model, with_ways).problems(); }

}  // namespace lockstep::arch
