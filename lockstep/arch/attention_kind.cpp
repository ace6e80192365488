// Attention: its parameters, its steps in the order in which nn/attention allocates and releases, and its drawing.
#include "lockstep/arch/attention_kind.h"

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/arch/context_attention.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

BranchLinears attention_linears(const ModelConfig& m) {
  const int64_t q = m.heads * m.head_size, kv = m.kv_heads * m.head_size;
  return {.first = {.name = "qkv", .in = m.hidden, .out = q + 2 * kv, .has_bias = m.qkv_bias},
          .pieces = {{"q", q}, {"k", kv, TensorCut::kKeyValueHeads}, {"v", kv, TensorCut::kKeyValueHeads}},
          .last = {.name = "out", .in = q, .out = m.hidden, .has_bias = m.out_bias}};
}

// Of queries and of keys: copies of what came in, statistics, and copies of gradients. Over each head (nn/head_norm), or over all heads of a
// kind (nn/whole_norm), whose ranks sum two numbers a token.
class QueryKeyNorms {
 public:
  QueryKeyNorms() = default;
  explicit QueryKeyNorms(LayerBuilder& b) : whole_(b.s.model.traits().whole_qk_norm) {
    const ModelConfig& m = b.s.model;
    for (const int64_t heads : {m.heads, m.kv_heads}) {
      constexpr Kept kKept{"q, k before their norms", Recompute::kNone}, kStatistics{"statistics of q, k", Recompute::kSelective};
      Norm& norm = norms_.emplace_back();
      norm.width = heads * m.head_size;
      norm.x = b.activations(norm.width, kKept);
      norm.statistics = whole_ ? b.value(4 * b.s.tokens, kStatistics) : b.value(4 * b.s.tokens * heads, kKept);
      norm.dy = b.activations(norm.width);
    }
    if (whole_) numbers_ = b.value(kNumbers * 4 * b.s.tokens);
  }

  void make_call(LayerBuilder& b, const Branch& branch, CallPhase phase) {
    if (!whole_) return;
    (phase == CallPhase::kForward ? forward_ : backward_) =
        b.call({.part = branch.part("qk_norm"), .phase = phase, .collective = Collective::kAllReduce, .numel = kNumbers * b.s.tokens,
                .element_size = 4});
  }

  void forward(LayerBuilder& b) const {
    if (whole_) return forward_whole(b);
    for (const Norm& norm : norms_) {  // one kind of heads after the other
      const int64_t values = b.bytes(norm.x);
      b.take(kAgain, norm.x), b.take(kAgain, norm.statistics);
      b.kernel(kAgain, values, 6 * values);
      b.drop(kLose, norm.x), b.drop(kLose, norm.statistics);
    }
  }

  // The gradients of what came in go back to their place.
  void backward_input(LayerBuilder& b) const {
    for (const Norm& norm : norms_) {
      b.take(kInputs, norm.dy);
      b.kernel(kInputs, whole_ ? 0 : b.bytes(norm.dy));
    }
    b.take(kInputs, numbers_);
    b.communicate(kInputs, backward_, 0);
    b.drop(kInputs, numbers_);
  }

  void backward_weight(LayerBuilder& b) const {
    if (!norms_.empty() && !whole_) b.kernel(kWeights, 16 * 2 * 4 * b.s.model.head_size);  // sums of 16 pieces (nn/head_norm)
    for (const Norm& norm : norms_) {
      if (whole_) b.kernel(kWeights, row_sum_scratch(b.s.tokens, 2 * norm.width));
      b.drop(kWeights, norm.x), b.drop(kWeights, norm.statistics), b.drop(kWeights, norm.dy);
    }
  }

 private:
  struct Norm {
    int64_t width = 0;
    int x = kNoValue, statistics = kNoValue, dy = kNoValue;
  };

  void forward_whole(LayerBuilder& b) const {
    int64_t values = 0;
    for (const Norm& norm : norms_) b.take(kAgain, norm.x), values += b.bytes(norm.x);
    b.take(kForwards, numbers_);
    b.kernel(kForwards, 0, 3 * values);
    b.communicate(kForwards, forward_, 0);
    for (const Norm& norm : norms_) b.take(kForwards, norm.statistics);
    b.drop(kForwards, numbers_);
    b.kernel(kAgain, 0, 2 * values);
    for (const Norm& norm : norms_) b.drop(kLose, norm.x), b.drop(kLose, norm.statistics);
  }

  static constexpr int64_t kNumbers = 2;  // of a token
  bool whole_ = false;
  std::vector<Norm> norms_{};  // none: q and k are not normed
  int numbers_ = kNoValue;
  int forward_ = LayerBuilder::kNoCall, backward_ = LayerBuilder::kNoCall;
};

class AttentionDescription : public BranchDescription {
 public:
  AttentionDescription(LayerBuilder& b, const Branch& branch, const BranchLinears& linears) : rotation_(branch.rotation) {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    views_projected = true;
    projected = b.activations(linears.first.out, {"q, k, v", Recompute::kSelective});
    if (m.qk_norm) norms_ = QueryKeyNorms(b);
    inner = b.activations(linears.last.in, {"attention output", Recompute::kSelective});
    const AttentionHeads heads{.queries = m.heads, .keys = m.kv_heads, .key_width = m.head_size, .value_width = m.head_size};
    core_ = ContextPlan(s, heads);
    if (core_.exchanged == 1) logsumexp_ = b.value(4 * s.tokens * m.heads, {"attention logsumexp", Recompute::kSelective});
    spans_ = b.value(span_bytes(s), {"attention spans", Recompute::kSelective});
    if (s.input.context.ranks > 1) context_.emplace(b, heads);
    if (m.attention_sinks) dsinks_ = b.value(4 * m.heads);
  }

  void make_forward_calls(LayerBuilder& b, const Branch& branch) override {
    norms_.make_call(b, branch, CallPhase::kForward);
    if (context_) context_->make_forward_calls(b, branch);
  }
  void make_backward_calls(LayerBuilder& b, const Branch& branch) override {
    if (context_) context_->make_backward_calls(b, branch);
    norms_.make_call(b, branch, CallPhase::kBackward);
  }

  void forward(LayerBuilder& b) const override {
    const Sizes& s = b.s;
    const ModelConfig& m = s.model;
    norms_.forward(b);
    const int64_t turned = s.activations((m.heads + m.kv_heads) * m.rotated());
    if (!m.traits().learned_positions && rotation_ != Rotation::kNone) b.kernel(m.qk_norm ? kAgain : kForwards, 0, 2 * turned);
    if (context_) {
      context_->forward(b, inner, logsumexp_);
      b.kernel(kForwards, 0, b.bytes(projected) + b.bytes(inner));
    } else {
      b.take(kForwards, spans_), b.take(kForwards, inner), b.take(kForwards, logsumexp_);
      b.kernel(kForwards, attention_scratch(s, m.head_size, {.sequences = 2, .blocks = 3, .keys = s.input.seq_len}),
               b.bytes(projected) + b.bytes(inner));
    }
    if (m.attention_sinks) b.kernel(kForwards, 0, 2 * b.bytes(inner));
    for (const char* name : {"scores", "mix"}) core_product(b, kForwards, name);
    b.drop(kLose, logsumexp_), b.drop(kLose, spans_);
  }

  void backward_input(LayerBuilder& b) const override {
    b.take(kInputs, dsinks_);
    // dq, dk, dv take the place of q, k, v.
    if (context_) context_->backward(b);
    else b.kernel(kInputs, attention_scratch(b.s, b.s.model.head_size, {.sequences = 4, .blocks = 5, .keys = b.s.input.seq_len}));
    for (const char* name : {"scores.again", "scores.dq", "scores.dk", "mix.dp", "mix.dv"}) core_product(b, kInputs, name);
    b.drop(kInputs, logsumexp_), b.drop(kInputs, spans_);
    norms_.backward_input(b);
  }

  void backward_weight(LayerBuilder& b) const override {
    norms_.backward_weight(b);
    b.drop(kWeights, dsinks_);
  }

 private:
  // Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
  void core_product(LayerBuilder& b, PhaseSet phases, const char* name) const {
    b.product(phases, {.name = name, .m = core_.of_sequence, .n = core_.keys_seen, .k = b.s.model.head_size,
                       .count = b.s.input.batch * core_.queries});
  }

  const Rotation rotation_;
  QueryKeyNorms norms_{};
  ContextPlan core_{};
  std::optional<ContextAttention> context_{};  // none: whole sequences
  int logsumexp_ = kNoValue, spans_ = kNoValue, dsinks_ = kNoValue;
};

std::unique_ptr<WholeBranch> describe_attention(LayerBuilder& b, const Branch& branch) {
  const BranchLinears linears = attention_linears(b.s.model);
  return new_linear_branch(b, branch, linears, std::make_unique<AttentionDescription>(b, branch, linears));
}

// Beside the linears.
void attention_parameters(ParameterRows& rows, const Branch& branch) {
  const ModelConfig& m = rows.model;
  if (m.qk_norm) {
    const bool whole = m.traits().whole_qk_norm;
    const auto add = [&](const char* part, int64_t heads, TensorCut cut) {
      ParamSpec& spec = rows.scale(branch.part(part), whole ? heads * m.head_size : m.head_size);
      if (m.traits().norm_plus_one) spec.init = Init::kZeros;
      spec.per_head = !whole;
      if (whole) spec.cut = cut;
    };
    add("q_norm", m.heads, TensorCut::kRows);
    add("k_norm", m.kv_heads, TensorCut::kKeyValueHeads);
  }
  if (!m.attention_sinks) return;
  ParamSpec& sinks = rows.scale(branch.part("sinks"), m.heads);
  sinks.cut = TensorCut::kRows;
  sinks.init = Init::kNormal;
  sinks.init_std = ParameterRows::kInitStd;
  sinks.of = config::ParameterClass::kBias;
}

std::string heads_text(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  const auto heads = [&](const char* part) {
    const ParamSpec& weight = pieces.at(branch.part(part));
    const int64_t first = weight.local_offset[0] / m.head_size;
    return cat(first, "..", first + weight.local_shape[0] / m.head_size - 1);
  };
  std::string text = cat("attention of query heads ", heads("q.weight"), " with key/value heads ", heads("k.weight"));
  if (branch.window) text += *branch.window > 0 ? cat(", of the last ", *branch.window, " tokens") : ", of all tokens";
  if (branch.rotation == Rotation::kNone) text += ", not turned by positions";
  if (branch.rotation == Rotation::kLocal) text += cat(", turned with theta ", m.rope_local_theta);
  if (m.rotary_size > 0 && branch.rotation != Rotation::kNone) text += cat(", ", m.rotary_size, " of ", m.head_size, " elements turned");
  if (m.qk_norm && m.traits().whole_qk_norm) text += ", a norm over all heads before it";
  if (m.attention_sinks) text += ", a sink for each head";
  return text;
}

}  // namespace

const BranchKind& attention_kind() {
  static const BranchKind kind{.id = "attention",
                               .sum = "sum after attention",
                               .linears = attention_linears,
                               .parameters = attention_parameters,
                               .between = heads_text,
                               .describe_whole = describe_attention};  // of two linears all the same: it asks for the branch
  return kind;
}

}  // namespace lockstep::arch
