// Attention and the MLP as kinds of branches, and the registry.
#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/arch/context_attention.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

BranchLinears attention_linears(const ModelConfig& m) {
  const int64_t q = m.heads * m.head_size, kv = m.kv_heads * m.head_size;
  return {.first = {.name = "qkv", .in = m.hidden, .out = q + 2 * kv, .has_bias = m.qkv_bias},
          .pieces = {{"q", q}, {"k", kv, TensorCut::kKeyValueHeads}, {"v", kv, TensorCut::kKeyValueHeads}},
          .last = {.name = "out", .in = q, .out = m.hidden, .has_bias = m.out_bias}};
}

class AttentionDescription : public BranchDescription {
 public:
  AttentionDescription(LayerBuilder& b, const BranchLinears& linears) {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    views_projected = true;
    projected = b.activations(linears.first.out, {"q, k, v", Recompute::kSelective});
    if (m.qk_norm)
      for (const int64_t heads : {m.heads, m.kv_heads}) {
        constexpr Kept kKept{"q, k before their norms", Recompute::kNone};
        LayerBuilder::Norm& norm = norms_.emplace_back();
        norm.x = b.activations(heads * m.head_size, kKept);
        norm.statistics = b.value(4 * s.tokens * heads, kKept);
        norm.dy = b.activations(heads * m.head_size);
      }
    inner = b.activations(linears.last.in, {"attention output", Recompute::kSelective});
    const AttentionHeads heads{.queries = m.heads, .keys = m.kv_heads, .key_width = m.head_size, .value_width = m.head_size};
    core_ = ContextPlan(s, heads);
    if (core_.exchanged == 1) logsumexp_ = b.value(4 * s.tokens * m.heads, {"attention logsumexp", Recompute::kSelective});
    spans_ = b.value(span_bytes(s), {"attention spans", Recompute::kSelective});
    if (s.input.context.ranks > 1) context_.emplace(b, heads);
  }

  void make_forward_calls(LayerBuilder& b, const Branch& branch) override {
    if (context_) context_->make_forward_calls(b, branch);
  }
  void make_backward_calls(LayerBuilder& b, const Branch& branch) override {
    if (context_) context_->make_backward_calls(b, branch);
  }

  void forward(LayerBuilder& b) const override {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    for (const LayerBuilder::Norm& norm : norms_) {  // one kind of heads after the other
      const int64_t values = b.bytes(norm.x);
      b.take(kAgain, norm.x), b.take(kAgain, norm.statistics);
      b.kernel(kAgain, values, 6 * values);
      b.drop(kLose, norm.x), b.drop(kLose, norm.statistics);
    }
    const int64_t turned = s.activations((m.heads + m.kv_heads) * m.head_size);
    if (!m.traits().learned_positions) b.kernel(m.qk_norm ? kAgain : kForwards, 0, 2 * turned);
    if (context_) {
      context_->forward(b, inner, logsumexp_);
      b.kernel(kForwards, 0, b.bytes(projected) + b.bytes(inner));
    } else {
      b.take(kForwards, spans_), b.take(kForwards, inner), b.take(kForwards, logsumexp_);
      b.kernel(kForwards, attention_scratch(s, m.head_size, {.sequences = 2, .blocks = 3, .keys = s.input.seq_len}),
               b.bytes(projected) + b.bytes(inner));
    }
    for (const char* name : {"scores", "mix"}) core_product(b, kForwards, name);
    b.drop(kLose, logsumexp_), b.drop(kLose, spans_);
  }

  void backward_input(LayerBuilder& b) const override {
    // dq, dk, dv take the place of q, k, v.
    if (context_) context_->backward(b);
    else b.kernel(kInputs, attention_scratch(b.s, b.s.model.head_size, {.sequences = 4, .blocks = 5, .keys = b.s.input.seq_len}));
    for (const char* name : {"scores.again", "scores.dq", "scores.dk", "mix.dp", "mix.dv"}) core_product(b, kInputs, name);
    b.drop(kInputs, logsumexp_), b.drop(kInputs, spans_);
    for (const LayerBuilder::Norm& norm : norms_) {  // the gradients of what came in go back to their place
      b.take(kInputs, norm.dy);
      b.kernel(kInputs, b.bytes(norm.dy));
    }
  }

  void backward_weight(LayerBuilder& b) const override {
    if (!norms_.empty()) b.kernel(kWeights, 16 * 2 * 4 * b.s.model.head_size);  // sums of 16 pieces (nn/head_norm)
    for (const LayerBuilder::Norm& norm : norms_)
      b.drop(kWeights, norm.x), b.drop(kWeights, norm.statistics), b.drop(kWeights, norm.dy);
  }

 private:
  // Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
  void core_product(LayerBuilder& b, PhaseSet phases, const char* name) const {
    b.product(phases, {.name = name, .m = core_.of_sequence, .n = core_.keys_seen, .k = b.s.model.head_size,
                       .count = b.s.input.batch * core_.queries});
  }
  // Of the heads of queries and of those of keys: what came in, copied, a statistic a head, and the gradients, copied.
  std::vector<LayerBuilder::Norm> norms_{};
  ContextPlan core_{};
  std::optional<ContextAttention> context_{};  // none: whole sequences
  int logsumexp_ = kNoValue, spans_ = kNoValue;
};

void head_norm_parameters(ParameterRows& rows, const Branch& branch) {
  if (!rows.model.qk_norm) return;
  for (const char* part : {"q_norm", "k_norm"}) rows.scale(branch.part(part), rows.model.head_size).per_head = true;
}

std::string heads_text(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  const auto heads = [&](const char* part) {
    const ParamSpec& weight = pieces.at(branch.part(part));
    const int64_t first = weight.local_offset[0] / m.head_size;
    return cat(first, "..", first + weight.local_shape[0] / m.head_size - 1);
  };
  return cat("attention of query heads ", heads("q.weight"), " with key/value heads ", heads("k.weight"));
}

BranchLinears mlp_linears(const ModelConfig& m) {
  BranchLinears linears{.first = {.name = "up", .in = m.hidden, .out = m.ffn, .has_bias = m.mlp_bias},
                        .pieces = {{"up", m.ffn}},
                        .last = {.name = "down", .in = m.ffn, .out = m.hidden, .has_bias = m.mlp_bias}};
  if (!m.traits().gated_mlp) return linears;
  linears.first.name = "gate_up", linears.first.out = 2 * m.ffn;
  linears.pieces.insert(linears.pieces.begin(), BranchLinears::Piece{"gate", m.ffn});
  return linears;
}

class MlpDescription : public BranchDescription {
 public:
  MlpDescription(LayerBuilder& b, const BranchLinears& linears) {
    const char* name = b.s.model.traits().gated_mlp ? "mlp gate and up" : "mlp up";
    projected = b.activations(linears.first.out, {name, Recompute::kSelective});
    inner = b.activations(linears.last.in, {"mlp activation", Recompute::kNone});
  }
  void forward(LayerBuilder& b) const override {
    b.take(kAgain, inner);
    b.kernel(kAgain, 0, b.bytes(projected) + b.bytes(inner));
  }
};

template <typename Description>
std::unique_ptr<BranchDescription> new_description(LayerBuilder& b, const BranchLinears& linears) {
  return std::make_unique<Description>(b, linears);
}

std::deque<BranchKind>& kinds() {
  static std::deque<BranchKind> all = {
      {.id = "attention",
       .sum = "sum after attention",
       .linears = attention_linears,
       .parameters = head_norm_parameters,
       .describe = new_description<AttentionDescription>,
       .between = heads_text},
      {.id = "mlp",
       .sum = "sum after mlp",
       .linears = mlp_linears,
       .describe = new_description<MlpDescription>,
       .between = [](const ModelConfig& m, const Branch&, const ParameterPieces&) -> std::string {
         return m.traits().gated_mlp ? "silu(gate) * up" : "gelu";
       }},
      latent_attention_kind(),
      experts_kind()};
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
    const auto mlps = std::ranges::count_if(block, [](const Branch& branch) { return branch.kind == "mlp"; });
    if (model.has_experts() && mlps > 1) add(": ", mlps, " MLPs, and experts stand for one");
  }
  return problems;
}

}  // namespace lockstep::arch
