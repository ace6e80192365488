#include "lockstep/arch/model_findings.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"

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
  const double attention = 2 * number(model.head_size) * (number(model.heads) + number(model.kv_heads));
  const double block = number(model.hidden) * (attention + 3 * number(model.ffn));
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

}  // namespace

ModelFindings sizes_that_do_not_fit(std::vector<LayoutProblem> problems) {
  return {.code = "LS1110", .heading = "[model] these sizes do not fit:", .problems = std::move(problems)};
}

std::vector<LayoutProblem> bound_problems(const config::ModelSection& section) {
  std::vector<LayoutProblem> problems;
  const auto expect = [&](const char* name, std::optional<int64_t> size, int64_t most = int64_t{1} << 31) {
    if (!size || (*size >= 1 && *size <= most)) return;
    const std::string key = cat("model.", name);
    problems.push_back({.key = key,
                        .what = cat(name, "(", *size, ") is not within 1 to ", most),
                        .ways = values_of(key, {cat(*size < 1 ? 1 : most)}) + std::vector{config::left_out(key)},
                        .depth = kBoundsDepth});
  };
  expect("layers", section.layers, 1 << 16);
  expect("hidden", section.hidden);
  expect("heads", section.heads);
  expect("kv_heads", section.kv_heads);
  expect("head_size", section.head_size);
  expect("ffn", section.ffn);
  expect("vocab_size", section.vocab_size);
  expect("max_seq_len", section.max_seq_len);
  return problems;
}

std::vector<LayoutProblem> contradictions(const ModelConfig& model, bool with_ways) {
  std::vector<LayoutProblem> problems;
  const auto expect = [&](bool holds, const char* key, std::string what, const auto& ways) {
    if (holds) return;
    problems.push_back({.key = key, .what = std::move(what), .depth = kSizesDepth});
    if (with_ways) problems.back().ways = ways();
  };
  const std::vector<Suggestion> own_kv_heads = {config::left_out("model.kv_heads")};
  expect(model.heads % model.kv_heads == 0, "model.kv_heads", remainder_text("heads", model.heads, "kv_heads", model.kv_heads), [&] {
    return config::divisors_near("model.kv_heads", model.heads, model.kv_heads) +
           config::multiples_near("model.heads", model.kv_heads, model.heads) + own_kv_heads;
  });
  expect(model.head_size >= 1, "model.heads", cat("hidden(", model.hidden, ") < heads(", model.heads, ")"), [&] {
    return config::divisors_near("model.heads", model.hidden, model.hidden) + values_of("model.hidden", {cat(2 * model.heads)});
  });
  if (model.traits().learned_positions) {
    expect(model.kv_heads == model.heads, "model.kv_heads",
           cat("kv_heads(", model.kv_heads, ") != heads(", model.heads, "): ", family_name(model.family),
               " has no grouped-query attention"),
           [&] { return values_of("model.kv_heads", {cat(model.heads)}) + own_kv_heads; });
  } else {
    expect(model.head_size % 2 == 0, "model.head_size",
           cat("head_size(", model.head_size, ") is odd: rotary positions turn pairs"), [&] { return even_heads(model); });
  }
  expect(model.dropout >= 0 && model.dropout < 1, "model.dropout", cat("dropout(", number_text(model.dropout), ") is not in [0, 1)"),
         [] { return values_of("model.dropout", {"0"}); });
  expect(rough_parameters(model) < kMaxParameters, "model.hidden",
         cat("about ", rough_parameters(model), " parameters are too many"), [&] { return fewer_parameters(model); });
  return problems;
}

std::vector<LayoutProblem> heads_problems(const ModelConfig& model, bool with_ways) {
  const int64_t heads = model.heads, hidden = model.hidden;
  if (hidden % heads == 0) return {};
  LayoutProblem problem{.key = "model.heads", .what = remainder_text("hidden", hidden, "heads", heads), .depth = kSizesDepth};
  const int64_t even = std::max<int64_t>(2, hidden / heads / 2 * 2);
  if (with_ways)
    problem.ways = config::divisors_near("model.heads", hidden, heads) + config::multiples_near("model.hidden", heads, hidden) +
                   values_of("model.head_size", {cat(even)});
  return {problem};
}

std::vector<std::string> size_problems(const ModelConfig& model) {
  std::vector<std::string> texts;
  for (const LayoutProblem& problem : contradictions(model, false)) texts.push_back(problem.what);
  for (std::string& problem : block_problems(model)) texts.push_back(std::move(problem));
  return texts;
}

}  // namespace lockstep::arch
