// What in the experts of a model contradicts itself, or the rest of it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/model_findings.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using config::LayoutProblem;
using config::left_out;
using config::Router;
using config::Suggestion;
using config::values_of;

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

// A file may say anything: what is computed with these sizes must not leave 64 bits, nor divide by zero.
void judge_ranges(const ModelConfig& model, Judged& judged) {
  visit_expert_sizes(model, [&](const char* name, int64_t size, int64_t least) {
    const int64_t most = most_of_size(name);
    const std::string key = cat("model.", name);
    judged.expect(size >= least && size <= most, key.c_str(), cat(name, "(", size, ") is not within ", least, " to ", most),
                  [&] { return values_of(key, {cat(size < least ? least : most)}) + std::vector{left_out(key)}; });
  });
}

void judge_groups(const ExpertSizes& experts, Judged& judged) {
  const int64_t count = experts.count, k = experts.per_token, groups = experts.groups, top = experts.top_groups;
  judged.expect(count % groups == 0, "model.router_groups",
                cat("experts(", count, ") % router_groups(", groups, ") = ", count % groups), [&] {
                  return config::divisors_near("model.router_groups", count, groups) +
                         config::multiples_near("model.experts", groups, count) + std::vector{left_out("model.router_groups")};
                });
  judged.expect(top <= groups, "model.router_top_groups", cat("router_top_groups(", top, ") > router_groups(", groups, ")"), [&] {
    return values_of("model.router_top_groups", {cat(groups)}) + std::vector{left_out("model.router_top_groups")};
  });
  judged.expect(k <= count, "model.experts_per_token", cat("experts_per_token(", k, ") > experts(", count, ")"), [&] {
    return values_of("model.experts_per_token", {cat(count)}) + values_of("model.experts", {cat(k)});
  });
  const int64_t within = top * (count / groups);
  if (k <= count && count % groups == 0 && top <= groups)
    judged.expect(k <= within, "model.experts_per_token",
                  cat("experts_per_token(", k, ") > router_top_groups(", top, ") x experts(", count, ") / router_groups(", groups,
                      ") = ", within),
                  [&] {
                    const int64_t each = count / groups;
                    return values_of("model.experts_per_token", {cat(within)}) +
                           values_of("model.router_top_groups", {cat((k + each - 1) / each)});
                  });
  judged.expect(experts.router != Router::kExpertChoice || groups == 1, "model.router_groups",
                cat("router_groups(", groups, ") limit the choice of a token, but with router expert_choice experts choose"),
                [] { return values_of("model.router_groups", {"1"}) + values_of("model.router", {"softmax_after_topk"}); });
}

void judge_dense_layers(const ModelConfig& model, Judged& judged) {
  const std::vector<int>& dense = model.experts.dense_layers;
  const auto ways = [&] {
    return values_of("model.dense_layers", model.layers > 1 ? std::vector<std::string>{"1"} : std::vector<std::string>{}) +
           std::vector{left_out("model.dense_layers")};
  };
  const bool in_range = dense.empty() || (dense.front() >= 0 && dense.back() < model.layers);
  const bool sorted = std::ranges::adjacent_find(dense, std::greater_equal<>()) == dense.end();
  judged.expect(in_range && sorted, "model.dense_layers",
                sorted ? cat("dense_layers name a block beyond layers(", model.layers, ")") : "dense_layers are not in ascending order", ways);
  judged.expect(!in_range || !sorted || std::ssize(dense) < model.layers, "model.dense_layers",
                cat("dense_layers name all layers(", model.layers, "): none is left for experts"), ways);
}

}  // namespace

std::vector<LayoutProblem> expert_contradictions(const ModelConfig& model, bool with_ways) {
  const ExpertSizes& experts = model.experts;
  if (!model.has_experts()) return {};
  Judged judged{.with_ways = with_ways};
  judge_ranges(model, judged);
  if (!judged.problems.empty()) return std::move(judged.problems);
  const char* other = model.gated_mlp() ? " has another activation than SwiGLU" : " has no gated MLP";
  judged.expect(model.activation == Activation::kSwiGlu, "model.experts", cat("experts are gated, but family ", family_name(model.family), other),
                [] { return values_of("model.family", {"mixtral", "llama"}) + std::vector{left_out("model.experts")}; });
  judge_groups(experts, judged);
  judge_dense_layers(model, judged);
  const int64_t all = saturating_mul(model.layers, experts.count);
  judged.expect(all <= kMostExperts, "model.experts",
                cat("layers(", model.layers, ") x experts(", experts.count, ") = ", all, ", more than ", kMostExperts), [&] {
                  return config::powers_below("model.experts", std::max<int64_t>(1, kMostExperts / model.layers)) +
                         config::powers_below("model.layers", std::max<int64_t>(1, kMostExperts / experts.count));
                });
  judged.expect(experts.clamp >= 0 && std::isfinite(experts.clamp), "model.from", cat("the clamp of experts(", number_text(experts.clamp), ") is below 0"),
                [] { return std::vector<Suggestion>{}; });
  judged.expect(experts.routed_scale > 0, "model.routed_scale", cat("routed_scale(", number_text(experts.routed_scale), ") is not above 0"),
                [] { return std::vector{left_out("model.routed_scale")}; });
  return std::move(judged.problems);
}

std::vector<LayoutProblem> problems_without_experts(const config::ModelSection& section, const ModelConfig& model) {
  std::vector<LayoutProblem> problems;
  if (model.has_experts()) return problems;
  const std::vector<Suggestion> with_experts = values_of("model.experts", {"8"});
  if (model.traits().experts)
    problems.push_back({.key = "model.experts",
                        .what = cat("family ", family_name(model.family), " has experts, but model.experts is not given"),
                        .ways = with_experts,
                        .depth = kSizesDepth});
  const auto unused = [&](const char* key, bool given) {
    if (given)
      problems.push_back({.key = key,
                          .what = cat(key, " is of experts, but model.experts is not given"),
                          .ways = with_experts + std::vector{left_out(key)},
                          .depth = kSizesDepth});
  };
  unused("model.experts_per_token", section.experts_per_token.has_value());
  unused("model.expert_ffn", section.expert_ffn.has_value());
  unused("model.shared_experts", section.shared_experts.has_value());
  unused("model.dense_layers", section.dense_layers.has_value());
  unused("model.router", section.router.has_value());
  unused("model.router_groups", section.router_groups.has_value());
  unused("model.router_top_groups", section.router_top_groups.has_value());
  unused("model.routed_scale", section.routed_scale.has_value());
  return problems;
}

}  // namespace lockstep::arch
