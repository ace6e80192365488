// The MLP as a kind of branches, and the registry.
#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "lockstep/arch/attention_kind.h"
#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

BranchLinears mlp_linears(const ModelConfig& m) {
  BranchLinears linears{.first = {.name = "up", .in = m.hidden, .out = m.ffn, .has_bias = m.mlp_bias},
                        .pieces = {{"up", m.ffn}},
                        .last = {.name = "down", .in = m.ffn, .out = m.hidden, .has_bias = m.mlp_bias}};
  if (!m.gated_mlp()) return linears;
  linears.first.name = "gate_up", linears.first.out = 2 * m.ffn;
  linears.pieces.insert(linears.pieces.begin(), BranchLinears::Piece{"gate", m.ffn});
  return linears;
}

class MlpDescription : public BranchDescription {
 public:
  MlpDescription(LayerBuilder& b, const BranchLinears& linears) {
    const char* name = b.s.model.gated_mlp() ? "mlp gate and up" : "mlp up";
    projected = b.activations(linears.first.out, {name, Recompute::kSelective});
    inner = b.activations(linears.last.in, {"mlp activation", Recompute::kNone});
  }
  void forward(LayerBuilder& b) const override {
    b.take(kAgain, inner);
    b.kernel(kAgain, 0, b.bytes(projected) + b.bytes(inner));
  }
};

std::unique_ptr<BranchDescription> describe_mlp(LayerBuilder& b, const BranchLinears& linears) {
  return std::make_unique<MlpDescription>(b, linears);
}

std::string activation_text(const ModelConfig& m, const Branch&, const ParameterPieces&) {
  switch (m.activation) {
    case Activation::kGeluTanh:
      return "gelu";
    case Activation::kGelu:
      return "gelu by erf";
    case Activation::kRelu2:
      return "max(x, 0)^2";
    case Activation::kSwiGlu:
      return "silu(gate) * up";
    case Activation::kGeGlu:
      return "gelu(gate) * up";
  }
  throw InternalError("no such activation");
}

std::deque<BranchKind>& kinds() {
  static std::deque<BranchKind> all = {
      attention_kind(),
      {.id = "mlp", .sum = "sum after mlp", .linears = mlp_linears, .describe = describe_mlp, .between = activation_text},
      latent_attention_kind(),
      experts_kind(),
      state_space_kind()};
  return all;
}

const BranchKind* find_kind(std::string_view id) {
  for (const BranchKind& kind : kinds())
    if (kind.id == id) return &kind;
  return nullptr;
}

}  // namespace

void add_branch_kind(const BranchKind& kind) {
  LOCKSTEP_CHECK(!find_kind(kind.id), "two kinds of branches named ", kind.id);
  kinds().push_back(kind);
}

const BranchKind& branch_kind(std::string_view id) {
  const BranchKind* kind = find_kind(id);
  LOCKSTEP_CHECK(kind, "no kind of branches named ", id);
  return *kind;
}

namespace {

// Of what the model has for it.
std::vector<std::string> branch_problems(const ModelConfig& model, const Branch& branch) {
  std::vector<std::string> problems;
  const bool latent = branch.kind == kLatentAttention || (branch.kind == "attention" && model.has_latent());
  if (branch.window.value_or(0) < 0) problems.push_back(cat("a window of ", *branch.window, " tokens"));
  if (branch.kind == kStateSpace && !model.has_state_space()) problems.emplace_back("a state space, and the model has no sizes of one");
  if (branch.kind == kExperts && !model.has_experts()) problems.emplace_back("experts, and the model has none");
  if (branch.kind == kLatentAttention && !model.has_latent()) problems.emplace_back("latent attention, and the model has no latents");
  if (branch.rotation == Rotation::kUsual) return problems;
  if (latent) problems.emplace_back("latent attention is turned by rope_theta and in no other way");
  if (model.traits().learned_positions) problems.emplace_back("a rotation of its own, and the model has learned positions");
  if (branch.rotation == Rotation::kLocal && model.rope_local_theta <= 0)
    problems.push_back(cat("turned by a theta of its own, and rope_local_theta is ", model.rope_local_theta));
  return problems;
}

}  // namespace

std::vector<std::string> block_problems(const ModelConfig& model) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const BlockSpec& block = model.blocks[i];
    const auto add = [&](const auto&... what) { problems.push_back(cat("blocks[", i, "]", what...)); };
    if (block.empty()) add(" has no branch");
    if (!block.empty() && block.front().beside) add(".", block.front().name, ": beside no branch, it is the first");
    std::set<std::string> names;
    for (const Branch& branch : block) {
      if (branch.name.empty() || !names.insert(branch.name).second) add(": no name, or that of another branch: \"", branch.name, "\"");
      if (!find_kind(branch.kind)) add(".", branch.name, ": there is no kind of branches \"", branch.kind, "\"");
    }
    for (const Branch& branch : block)
      for (const std::string& problem : branch_problems(model, branch)) add(".", branch.name, ": ", problem);
    const auto mlps = std::ranges::count_if(block, [](const Branch& branch) { return branch.kind == "mlp"; });
    if (model.has_experts() && mlps > 1) add(": ", mlps, " MLPs, and experts stand for one");
  }
  return problems;
}

}  // namespace lockstep::arch
