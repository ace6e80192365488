// Experts as a kind of branch: parameters and drawing.
#include <algorithm>
#include <utility>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// The router, the shared expert, then all gates and ups, and all downs, so that those of a rank are one matrix each; behind each their
// biases, so that these are one vector. etp cuts a bias by rows, that of down too: of the sum over etp each rank adds its own columns.
void expert_parameters(ParameterRows& rows, const Branch& branch) {
  const ExpertSizes& sizes = rows.model.experts;
  const int64_t hidden = rows.model.hidden, shared = sizes.shared * sizes.ffn;
  ParamSpec& router = rows.weight(branch.part("router"), sizes.count, hidden, TensorCut::kNone);
  router.of = config::ParameterClass::kRouter;
  router.fp32 = true;
  if (sizes.router_bias) {
    ParamSpec& bias = rows.bias(branch.part("router"), sizes.count);
    bias.update.optimizer = &optimizer_spec("balance");
    bias.in_norm = false;
    bias.fp32 = true;  // it moves by moe.bias_rate, less than bf16 can tell apart
  }
  if (sizes.logit_bias) {
    ParamSpec& bias = rows.bias(branch.part("logits"), sizes.count);
    bias.of = config::ParameterClass::kRouter;  // Partial over tp and updated as the router's weight is
    bias.fp32 = true;
  }
  const auto fuse = [&](std::string_view part, const char* kind = "weight") { return rows.named(branch.part(part), kind); };
  if (shared > 0) {
    for (const char* part : {"shared.gate", "shared.up"})
      rows.weight(branch.part(part), shared, hidden, TensorCut::kRows).fuse = fuse(kSharedFirst);
    rows.weight(branch.part(kSharedLast), hidden, shared, TensorCut::kColumns, rows.output_std());
  }
  // Hundreds of experts in every block, and a search makes them for every candidate that it walks: no streams, and one name for all that is fused.
  const auto own = [&](int64_t e, const char* part) { return branch.part(std::to_string(e).append(".").append(part)); };
  const auto expert = [&](int64_t e, const char* part, int64_t out, int64_t in, TensorCut cut, double init_std, const std::string& fused) {
    ParamSpec& spec = rows.weight(own(e, part), out, in, cut, init_std);
    spec.expert = static_cast<int>(e);
    spec.fuse = fused;
  };
  const auto bias = [&](int64_t e, const char* part, int64_t size, const std::string& fused) {
    ParamSpec& spec = rows.bias(own(e, part), size, TensorCut::kRows);
    spec.expert = static_cast<int>(e);
    spec.fuse = fused;
  };
  const std::string first = fuse("gate_up"), last = fuse("down"), first_bias = fuse("gate_up", "bias"), last_bias = fuse("down", "bias");
  rows.rows.reserve(rows.rows.size() + static_cast<size_t>((sizes.biases ? 6 : 3) * rows.experts.size()) + 1);
  const int64_t biased = sizes.biases ? rows.experts.end : rows.experts.begin;  // experts before this one have biases
  for (int64_t e = rows.experts.begin; e < rows.experts.end; ++e)
    for (const char* part : {"gate", "up"}) expert(e, part, sizes.ffn, hidden, TensorCut::kRows, ParameterRows::kInitStd, first);
  for (int64_t e = rows.experts.begin; e < biased; ++e)
    for (const char* part : {"gate", "up"}) bias(e, part, sizes.ffn, first_bias);
  for (int64_t e = rows.experts.begin; e < rows.experts.end; ++e)
    expert(e, "down", hidden, sizes.ffn, TensorCut::kColumns, rows.output_std(), last);
  for (int64_t e = rows.experts.begin; e < biased; ++e) bias(e, "down", hidden, last_bias);
}

std::string choice_text(const ExpertSizes& sizes) {
  const std::string groups = sizes.groups > 1 ? cat(", of the best ", sizes.top_groups, " of ", sizes.groups, " groups") : "";
  const std::string logits = sizes.logit_bias ? "x router + logits.bias" : "x router";
  switch (sizes.router) {
    case config::Router::kSoftmax:
      return cat("the ", sizes.per_token, " largest of softmax(", logits, ")", groups);
    case config::Router::kSoftmaxAfterTopk:
      return cat("softmax over the ", sizes.per_token, " largest of ", logits, groups);
    case config::Router::kSigmoid:
      return cat("the ", sizes.per_token, " largest of sigmoid(", logits, ")", sizes.router_bias ? " + bias" : "", groups);
    case config::Router::kExpertChoice:
      return cat("each expert takes the tokens with the largest softmax(", logits, "), ", sizes.per_token,
                 " experts for a token on average");
  }
  return "";
}

std::string activation_text(const ExpertSizes& sizes) {
  if (sizes.clamp <= 0) return "silu(gate) * up";
  return cat("(up + 1) * gate * sigmoid(1.702 gate), gate at most ", sizes.clamp, ", up within +-", sizes.clamp);
}

std::vector<DrawnPart> expert_drawing(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  using What = DrawnPart::What;
  int64_t first = m.experts.count, last = -1;  // of this rank
  for (const auto& [name, piece] : pieces)
    if (piece.expert >= 0) first = std::min<int64_t>(first, piece.expert), last = std::max<int64_t>(last, piece.expert);
  const auto weight = [&](std::string_view part) { return branch.part(part) + ".weight"; };
  std::vector<DrawnPart> parts = {{What::kMatrices, {weight("router")}},
                                  {What::kCalls, {branch.part("scores")}},
                                  {What::kText, {choice_text(m.experts)}},
                                  {What::kCalls, {branch.part("counts")}},
                                  {What::kCalls, {branch.part("tokens")}},
                                  {What::kCalls, {branch.part("weights")}},
                                  {What::kCalls, {branch.part("dispatch")}},
                                  {What::kCalls, {branch.part("dispatch.node")}}};
  const auto add = [&](What what, std::vector<std::string> names) { parts.push_back({what, std::move(names)}); };
  if (m.experts.shared > 0) {
    add(What::kText, {"meanwhile the shared expert, on all tokens: gate and up beside dispatch, down beside combine"});
    add(What::kCalls, {branch.part(kSharedFirst)});
    add(What::kMatrices, {weight("shared.gate"), weight("shared.up")});
    add(What::kText, {"silu(gate) * up"});
    add(What::kMatrices, {weight(kSharedLast)});
    add(What::kCalls, {branch.part(kSharedLast)});
  }
  add(What::kText, {cat("experts ", first, "..", last, " of ", m.experts.count, " are here, each on the tokens that come to it; expert ", first, ":")});
  add(What::kMatrices, {weight(cat(first, ".gate")), weight(cat(first, ".up"))});
  add(What::kText, {activation_text(m.experts)});
  add(What::kMatrices, {weight(cat(first, ".down"))});
  add(What::kCalls, {branch.part("combine.node")});
  add(What::kCalls, {branch.part("combine")});
  add(What::kText, {"sum over a token's experts, with its weights"});
  add(What::kCalls, {branch.part("rows")});
  return parts;
}

}  // namespace

const BranchKind& experts_kind() {
  static const BranchKind kind{.id = kExperts,
                               .sum = "sum after experts",
                               .rows = expert_parameters,
                               .describe_whole = new_experts_branch,
                               .drawing = expert_drawing};
  return kind;
}

}  // namespace lockstep::arch
