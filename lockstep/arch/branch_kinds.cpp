// Attention and the MLP as kinds of branches.
#include <deque>
#include <set>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

class AttentionDescription : public BranchDescription {
 public:
  explicit AttentionDescription(LayerBuilder& b) {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    const int64_t q = m.heads * m.head_size, qkv = q + 2 * m.kv_heads * m.head_size;
    first = {.name = "qkv", .in = m.hidden, .out = qkv, .has_bias = m.qkv_bias};
    last = {.name = "out", .in = q, .out = m.hidden, .has_bias = m.out_bias};
    views_projected = true;
    projected = b.activations(qkv, {"q, k, v", Recompute::kSelective});
    if (m.qk_norm)
      for (const int64_t heads : {m.heads, m.kv_heads}) {
        constexpr Kept kKept{"q, k before their norms", Recompute::kNone};
        HeadNorm& norm = heads_.emplace_back();
        norm.values = b.activations(heads * m.head_size, kKept);
        norm.statistics = b.value({.rows = s.tokens, .columns = heads, .element_size = 4, .kept_as = kKept.as, .most = kKept.most});
        norm.gradients = b.activations(heads * m.head_size);
      }
    inner = b.activations(q, {"attention output", Recompute::kSelective});
    dinner = b.activations(q);
    logsumexp_ = b.value({.rows = s.tokens, .columns = m.heads, .element_size = 4, .kept_as = "attention logsumexp",
                          .most = Recompute::kSelective});
  }

  void forward(LayerBuilder& b) const override {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    for (const HeadNorm& norm : heads_) {  // one kind of heads after the other
      const int64_t values = b.bytes(norm.values);
      b.take(kAgain, norm.values), b.take(kAgain, norm.statistics);
      b.kernel(kAgain, values, 6 * values);
      b.drop(kLose, norm.values), b.drop(kLose, norm.statistics);
    }
    const int64_t turned = s.activations((m.heads + m.kv_heads) * m.head_size);
    if (!m.traits().learned_positions) b.kernel(m.qk_norm ? kAgain : kForwards, 0, 2 * turned);
    b.take(kForwards, inner), b.take(kForwards, logsumexp_);
    b.kernel(kForwards, attention_scratch(s.input, m.head_size, kAttentionForward), b.bytes(projected) + b.bytes(inner));
    for (const char* name : {"scores", "mix"}) core_product(b, kForwards, name);
    b.drop(kLose, logsumexp_);
  }

  void backward_input(LayerBuilder& b) const override {
    // dq, dk, dv take the place of q, k, v.
    b.kernel(kInputs, attention_scratch(b.s.input, b.s.model.head_size, kAttentionBackward));
    for (const char* name : {"scores.again", "scores.dq", "scores.dk", "mix.dp", "mix.dv"}) core_product(b, kInputs, name);
    b.drop(kInputs, logsumexp_);
    for (const HeadNorm& norm : heads_) {  // those of what came in go back to their place
      b.take(kInputs, norm.gradients);
      b.kernel(kInputs, b.bytes(norm.gradients));
    }
  }

  void backward_weight(LayerBuilder& b) const override {
    if (!heads_.empty()) b.kernel(kWeights, head_norm_scratch(b.s.model.head_size));
    for (const HeadNorm& norm : heads_)
      b.drop(kWeights, norm.values), b.drop(kWeights, norm.statistics), b.drop(kWeights, norm.gradients);
  }

 private:
  // Of queries or of keys, where heads have norms: what came in, copied, and a statistic a head; the gradients, copied.
  struct HeadNorm {
    int values = kNoValue, statistics = kNoValue, gradients = kNoValue;
  };
  // Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
  static void core_product(LayerBuilder& b, PhaseSet phases, const char* name) {
    const int64_t half = (b.s.input.seq_len + 1) / 2;  // causal: of the S keys a query sees half on average
    b.product(phases, {.name = name, .m = b.s.input.seq_len, .n = half, .k = b.s.model.head_size,
                       .count = b.s.input.batch * b.s.model.heads});
  }
  std::vector<HeadNorm> heads_{};
  int logsumexp_ = kNoValue;
};

void attention_parameters(ParameterRows& rows, const Branch& branch) {
  const ModelConfig& m = rows.model;
  const int64_t q = m.heads * m.head_size, kv = m.kv_heads * m.head_size;
  rows.fused(branch.part("qkv"), m.qkv_bias,
             {{branch.part("q"), q, TensorCut::kRows},
              {branch.part("k"), kv, TensorCut::kKeyValueHeads},
              {branch.part("v"), kv, TensorCut::kKeyValueHeads}});
  if (m.qk_norm)
    for (const char* part : {"q_norm", "k_norm"}) rows.scale(branch.part(part), m.head_size).per_head = true;
  rows.output(branch.part("out"), q, m.out_bias);
}

std::string heads_text(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  const auto heads = [&](const char* part) {
    const ParamSpec& weight = pieces.at(branch.part(part));
    const int64_t first = weight.local_offset[0] / m.head_size;
    return cat(first, "..", first + weight.local_shape[0] / m.head_size - 1);
  };
  return cat("attention of query heads ", heads("q.weight"), " with key/value heads ", heads("k.weight"));
}

BranchLinears mlp_linears(const ModelConfig& m) { return {.first = m.traits().gated_mlp ? "gate_up" : "up", .last = "down"}; }

class MlpDescription : public BranchDescription {
 public:
  explicit MlpDescription(LayerBuilder& b) {
    const ModelConfig& m = b.s.model;
    const auto [up, down] = mlp_linears(m);
    const int64_t width = m.traits().gated_mlp ? 2 * m.ffn : m.ffn;
    first = {.name = up, .in = m.hidden, .out = width, .has_bias = m.mlp_bias};
    last = {.name = down, .in = m.ffn, .out = m.hidden, .has_bias = m.mlp_bias};
    projected = b.activations(width, {m.traits().gated_mlp ? "mlp gate and up" : "mlp up", Recompute::kSelective});
    inner = b.activations(m.ffn, {"mlp activation", Recompute::kNone});
    dinner = b.activations(m.ffn);
  }
  void forward(LayerBuilder& b) const override {
    b.take(kAgain, inner);
    b.kernel(kAgain, 0, b.bytes(projected) + b.bytes(inner));
  }
};

void mlp_parameters(ParameterRows& rows, const Branch& branch) {
  const ModelConfig& m = rows.model;
  const std::string first = branch.part(mlp_linears(m).first);
  if (m.traits().gated_mlp) {
    rows.fused(first, m.mlp_bias, {{branch.part("gate"), m.ffn}, {branch.part("up"), m.ffn}});
  } else {
    rows.weight(first, m.ffn, m.hidden, TensorCut::kRows);
    if (m.mlp_bias) rows.bias(first, m.ffn, TensorCut::kRows);
  }
  rows.output(branch.part("down"), m.ffn, m.mlp_bias);
}

template <typename Description>
std::unique_ptr<BranchDescription> new_description(LayerBuilder& b) {
  return std::make_unique<Description>(b);
}

std::deque<BranchKind>& kinds() {
  static std::deque<BranchKind> all = {
      {.id = "attention",
       .sum = "sum after attention",
       .linears = [](const ModelConfig&) -> BranchLinears { return {.first = "qkv", .last = "out"}; },
       .parameters = attention_parameters,
       .describe = new_description<AttentionDescription>,
       .between = heads_text,
       .macs_of_pair = [](const ModelConfig& m) { return 2 * m.heads * m.head_size; }},
      {.id = "mlp",
       .sum = "sum after mlp",
       .linears = mlp_linears,
       .parameters = mlp_parameters,
       .describe = new_description<MlpDescription>,
       .between = [](const ModelConfig& m, const Branch&, const ParameterPieces&) -> std::string {
         return m.traits().gated_mlp ? "silu(gate) * up" : "gelu";
       }}};
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
  }
  return problems;
}

}  // namespace lockstep::arch
