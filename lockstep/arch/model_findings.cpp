#include "lockstep/arch/model_findings.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/layer_letters.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using config::LayoutProblem;
using config::Suggestion;
using config::values_of;

constexpr double kMaxParameters = 1e15;  // beyond it offsets in bytes would leave 64 bits

double number(int64_t size) { return static_cast<double>(size); }

std::string remainder_text(const char* what, int64_t a, const char* by, int64_t b) {
  return cat(what, "(", a, ") % ", by, "(", b, ") = ", a % b);
}

// An upper bound of the model's parameters, in numbers that do not overflow.
double rough_parameters(const ModelConfig& model) {
  const LatentSizes& latent = model.latent;
  const double ranks = number(latent.q_rank) + number(latent.kv_rank) + number(latent.rope), value = number(latent.value);
  const double of_latent = ranks + number(model.heads) * (value + ranks * (number(latent.nope) + number(latent.rope) + value) / number(model.hidden));
  const double attention = 2 * number(model.head_size) * (number(model.heads) + number(model.kv_heads)) + of_latent;
  const double experts = model.has_experts() ? (number(model.experts.count) + number(model.experts.shared)) * (3 * number(model.experts.ffn) + 1) : 0;
  const StateSpaceSizes& states = model.state_space;
  const double inner = number(states.heads) * number(states.head_size), convolved = inner + 2 * number(states.groups) * number(states.state);
  const double of_states = 2 * inner + convolved * (1 + number(states.convolution)) + number(states.heads) + 16;
  const double block = number(model.hidden) * (attention + 3 * number(model.ffn) + experts + (model.has_state_space() ? of_states : 0));
  return number(model.layers) * block +
         number(model.hidden) * (2 * number(model.vocab_size) + number(model.max_seq_len));
}

// Each size by itself as small as it must be, at first by as much as there are too many.
std::vector<Suggestion> fewer_parameters(const ModelConfig& model) {
  const double share = kMaxParameters / rough_parameters(model);
  const auto most = [&](int64_t size, int64_t unit) { return std::max(unit, static_cast<int64_t>(number(size) * share)); };
  std::vector<Suggestion> ways;
  const auto add = [&](const char* name, int64_t size, int64_t unit = 1) {
    const std::string key = cat("model.", name);
    ways = ways + config::powers_below(key, most(size, unit), unit) + std::vector{config::left_out(key)};
  };
  add("layers", model.layers);
  add("hidden", model.hidden, model.heads);
  add("ffn", model.ffn);
  if (model.has_experts()) add("expert_ffn", model.experts.ffn);
  if (model.has_state_space()) add("state_heads", model.state_space.heads, model.state_space.groups);
  add("vocab_size", model.vocab_size);
  return ways;
}

// Heads that divide the hidden size and have an even size; or that size itself.
std::vector<Suggestion> even_heads(const ModelConfig& model) {
  std::vector<std::string> sizes = {cat(model.head_size + 1)};
  if (model.head_size > 1) sizes.insert(sizes.begin(), cat(model.head_size - 1));
  std::vector<Suggestion> heads = config::divisors_near("model.heads", model.hidden, model.heads);
  std::erase_if(heads, [&](const Suggestion& way) { return model.hidden / std::stoll(*way.changes[0].value) % 2 != 0; });
  return values_of("model.head_size", sizes) + heads;
}

// Keys that the directory answers, and the section names all the same.
std::vector<std::string> keys_beside(const config::ModelSection& section) {
  constexpr std::array<std::string_view, 3> kMayBeSet = {"from", "dropout", "max_seq_len"};
  config::RunConfig config;
  config.model = section;
  std::vector<std::string> given;
  for (const config::Section& table : config::sections())
    for (const config::Field& field : table.fields) {
      const bool judged = field.section == "model" && std::ranges::count(kMayBeSet, field.name) == 0;
      if (judged && field.print(config) != field.default_text()) given.push_back(field.key());
    }
  return given;
}

ModelFindings refused(int depth, const std::string& key, std::string what, Suggestion way) {
  return {.code = "LS1116",
          .problems = {{.key = key, .what = std::move(what), .ways = {std::move(way)}, .depth = depth}}};
}

}  // namespace

std::vector<LayoutProblem> bound_problems(const config::ModelSection& section) {
  std::vector<LayoutProblem> problems;
  const auto bounded = [&](const char* name, std::optional<int64_t> size, int64_t least) {
    const int64_t most = most_of_size(name);
    if (!size || (*size >= least && *size <= most)) return;
    const std::string key = cat("model.", name);
    problems.push_back({.key = key,
                        .what = cat(name, "(", *size, ") is not within ", least, " to ", most),
                        .ways = values_of(key, {cat(*size < least ? least : most)}) + std::vector{config::left_out(key)},
                        .depth = kBoundsDepth});
  };
  visit_sizes(section, [&](const char* name, std::optional<int64_t> size) { bounded(name, size, 1); });
  visit_latent_sizes(section, [&](const char* name, std::optional<int64_t> size) { bounded(name, size, 1); });
  visit_expert_sizes(section, bounded);
  visit_state_sizes(section, bounded);
  bounded("window", section.window, 1);
  return problems;
}

namespace {

struct Judged {
  bool with_ways = true;
  std::vector<LayoutProblem> problems{};

  template <typename Ways>
  void expect(bool holds, const char* key, std::string what, const Ways& ways) {
    if (holds) return;
    problems.push_back({.key = key, .what = std::move(what), .depth = kSizesDepth});
    if (with_ways) problems.back().ways = ways();
  }
};

void judge_heads(const ModelConfig& model, bool derived_head_size, Judged& judged) {
  const int64_t heads = model.heads, hidden = model.hidden;
  judged.expect(!derived_head_size || hidden % heads == 0, "model.heads", remainder_text("hidden", hidden, "heads", heads), [&] {
    return config::divisors_near("model.heads", hidden, heads) + config::multiples_near("model.hidden", heads, hidden) +
           values_of("model.head_size", {cat(std::max<int64_t>(2, hidden / heads / 2 * 2))});
  });
  const std::vector<Suggestion> own_kv_heads = {config::left_out("model.kv_heads")};
  judged.expect(heads % model.kv_heads == 0, "model.kv_heads", remainder_text("heads", heads, "kv_heads", model.kv_heads), [&] {
    return config::divisors_near("model.kv_heads", heads, model.kv_heads) + config::multiples_near("model.heads", model.kv_heads, heads) +
           own_kv_heads;
  });
  judged.expect(model.head_size >= 1, "model.heads", cat("hidden(", hidden, ") < heads(", heads, ")"), [&] {
    return config::divisors_near("model.heads", hidden, hidden) + values_of("model.hidden", {cat(2 * heads)});
  });
  if (model.traits().learned_positions) {
    judged.expect(model.kv_heads == heads, "model.kv_heads",
                  cat("kv_heads(", model.kv_heads, ") != heads(", heads, "): ", family_name(model.family), " has no grouped-query attention"),
                  [&] { return values_of("model.kv_heads", {cat(heads)}) + own_kv_heads; });
  } else {
    judged.expect(model.rotated() % 2 == 0 || model.has_latent(), "model.head_size",
                  cat(model.rotary_size > 0 ? "rotary_size(" : "head_size(", model.rotated(), ") is odd: rotary positions turn pairs"),
                  [&] { return even_heads(model); });
  }
}

}  // namespace

std::vector<LayoutProblem> contradictions(const ModelConfig& model, bool derived_head_size, bool with_ways) {
  Judged judged{.with_ways = with_ways};
  if (has_attention(model)) judge_heads(model, derived_head_size, judged);
  judged.expect(model.dropout >= 0 && model.dropout < 1, "model.dropout", cat("dropout(", number_text(model.dropout), ") is not in [0, 1)"),
                [] { return values_of("model.dropout", {"0"}); });
  judged.expect(rough_parameters(model) < kMaxParameters, "model.hidden", cat("about ", rough_parameters(model), " parameters are too many"),
                [&] { return fewer_parameters(model); });
  std::vector<LayoutProblem>& problems = judged.problems;
  for (LayoutProblem& problem : latent_contradictions(model, with_ways)) problems.push_back(std::move(problem));
  for (LayoutProblem& problem : expert_contradictions(model, with_ways)) problems.push_back(std::move(problem));
  for (LayoutProblem& problem : branch_contradictions(model, with_ways)) problems.push_back(std::move(problem));
  return std::move(problems);
}

std::vector<std::string> size_problems(const ModelConfig& model) {
  std::vector<std::string> texts;
  for (const LayoutProblem& problem : contradictions(model, /*derived_head_size=*/false, /*with_ways=*/false))
    texts.push_back(problem.what);
  for (std::string& problem : block_problems(model)) texts.push_back(std::move(problem));
  return texts;
}

ModelFindings judge_hf_model(const config::ModelSection& section, const config::MoeSection& moe) {
  if (const std::vector<std::string> given = keys_beside(section); !given.empty()) {
    Suggestion without{.changes = {}, .text = "leave them out; dropout and max_seq_len may be set"};
    for (const std::string& key : given) without.changes.push_back({.key = key});
    return refused(kNamesDepth, given.front(),
                   cat(join(given, ", "), " beside model.from: the directory says what the model is"), std::move(without));
  }
  ModelConfig model = load_hf_config(source_folder(section.from)).model;
  model.dropout = section.dropout.value_or(model.dropout);
  model.experts.router_bias = has_router_bias(model, moe);
  if (!section.max_seq_len || *section.max_seq_len == model.max_seq_len) return {.model = model};
  const char* key = "model.max_seq_len";
  if (model.traits().learned_positions)
    return refused(kSizesDepth, key,
                   cat(key, " = ", *section.max_seq_len, ": the model has learned ", model.max_seq_len, " positions"),
                   {.changes = {{.key = key}}, .text = "leave it out; train.seq_len may be shorter"});
  model.max_seq_len = *section.max_seq_len;
  return {.model = model};
}

}  // namespace lockstep::arch
