#include "lockstep/arch/layer_description.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/layer_builder.h"
#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

using Slot = LayerCall::Slot;

// "qkv" of "attention.qkv".
std::string_view last_word(std::string_view part) { return part.substr(part.rfind('.') + 1); }

// A block of branches, in the order in which model::Block and the layers below it allocate and release.
class BlockBuilder {
 public:
  BlockBuilder(const ModelConfig& model, const std::vector<Branch>& branches, const CostInput& input)
      : b_(model, input), s_(b_.s) {
    b_.d.branches = branches;
    parts_.reserve(branches.size());
    for (const Branch& branch : branches) parts_.push_back({.branch = branch});
    parts_.back().is_last = true;
    make_values();
    make_calls();
  }

  LayerDescription take() {
    for (const Part& part : parts_) forward(part);
    backward();
    return std::move(b_.d);
  }

 private:
  // Of queries or of keys, where heads have norms: what came in, copied, and a statistic a head; the gradients, copied.
  struct HeadNorm {
    int values = kNoValue, statistics = kNoValue, gradients = kNoValue;
  };
  struct Part {
    Branch branch{};
    bool is_last = false;
    LayerBuilder::Linear first{}, last{};
    LayerBuilder::Norm norm{};
    int projected = kNoValue;  // by the first linear; its gradient takes its place
    int inner = kNoValue;      // what the last linear takes
    int dinner = kNoValue;
    int logsumexp = kNoValue;
    std::vector<HeadNorm> heads{};
    int mask = kNoValue;
    int sum = kNoValue;  // x + branch, in the branch's place: x of the next one, or the output
    int dx = kNoValue;
    // With sequence parallelism.
    int whole_x = kNoValue, copy_x = kNoValue, whole_y = kNoValue, whole_dy = kNoValue, whole_dx = kNoValue, copy_dx = kNoValue;
    // Calls, in the order of LayerDescription::calls.
    static constexpr int kNone = LayerBuilder::kNoCall;
    int first_forward = kNone, last_forward = kNone, last_backward = kNone, first_gather = kNone, first_backward = kNone;
  };

  static constexpr PhaseSet kAgain = kForwards | Phase::kRestore;
  static constexpr PhaseSet kLose = Phase::kEvaluate;

  bool attends(const Part& p) const { return p.branch.mixer == Branch::Mixer::kAttention; }
  // The last linear takes the dy of its branch as it came, and W needs it.
  bool keeps_dy() const { return !s_.sequence && s_.mask == 0; }

  void make_values() {
    int x = b_.d.input = b_.hidden({"input", Recompute::kFull});
    dy_ = b_.hidden();
    for (Part& p : parts_) {
      p.norm.x = x;
      p.norm.statistics = b_.statistics({"norm statistics", Recompute::kSelective});
      p.norm.y = b_.hidden({"norm outputs", Recompute::kNone});
      p.norm.dy = b_.hidden();
      attends(p) ? attention_values(p) : mlp_values(p);
      const std::string_view kept_as = attends(p) ? "sum after attention" : "sum after mlp";
      x = p.sum = p.is_last ? b_.hidden() : b_.hidden({kept_as, Recompute::kSelective});
      p.dx = b_.hidden();
      p.whole_x = b_.whole(), p.whole_y = b_.whole(), p.whole_dy = b_.whole(), p.whole_dx = b_.whole();
      if (s_.uneven) p.copy_x = b_.hidden(), p.copy_dx = b_.whole();
    }
    b_.d.output = x;
    for (Part& p : parts_) p.mask = b_.mask({"dropout masks", Recompute::kNone});
  }

  void attention_values(Part& p) {
    const ModelConfig& m = s_.model;
    p.first = {.name = last_word(p.branch.first), .in = m.hidden, .out = s_.qkv_width, .has_bias = m.qkv_bias};
    p.last = {.name = last_word(p.branch.last), .in = s_.q_width, .out = m.hidden, .has_bias = m.out_bias};
    p.projected = b_.activations(s_.qkv_width, {"q, k, v", Recompute::kSelective});
    if (m.qk_norm)
      for (const int64_t heads : {m.heads, m.kv_heads}) {
        constexpr Kept kKept{"q, k before their norms", Recompute::kNone};
        HeadNorm& norm = p.heads.emplace_back();
        norm.values = b_.activations(heads * m.head_size, kKept);
        norm.statistics = b_.value({.rows = s_.tokens, .columns = heads, .element_size = 4, .kept_as = kKept.as, .most = kKept.most});
        norm.gradients = b_.activations(heads * m.head_size);
      }
    p.inner = b_.activations(s_.q_width, {"attention output", Recompute::kSelective});
    p.dinner = b_.activations(s_.q_width);
    p.logsumexp = b_.value({.rows = s_.tokens, .columns = m.heads, .element_size = 4, .kept_as = "attention logsumexp",
                            .most = Recompute::kSelective});
  }

  void mlp_values(Part& p) {
    const ModelConfig& m = s_.model;
    const bool gated = m.traits().gated_mlp;
    p.first = {.name = last_word(p.branch.first), .in = m.hidden, .out = s_.up_width, .has_bias = m.mlp_bias};
    p.last = {.name = last_word(p.branch.last), .in = m.ffn, .out = m.hidden, .has_bias = m.mlp_bias};
    p.projected = b_.activations(s_.up_width, {gated ? "mlp gate and up" : "mlp up", Recompute::kSelective});
    p.inner = b_.activations(m.ffn, {"mlp activation", Recompute::kNone});
    p.dinner = b_.activations(m.ffn);
  }

  void make_calls() {
    for (Part& p : parts_) {
      p.first_forward = b_.gather_rows(p.branch.first, Slot::kForward);
      p.last_forward = b_.reduce_output(p.branch.last, Slot::kForward);
      p.last_backward = b_.gather_rows(p.branch.last, Slot::kBackward);
      p.first_gather = b_.gather_rows(p.branch.first, Slot::kGather);
      p.first_backward = b_.reduce_output(p.branch.first, Slot::kBackward);
    }
  }

  void forward(const Part& p) {
    b_.norm_forward(kAgain, kLose | Phase::kRestore, p.norm);
    b_.take(kForwards, p.whole_x), b_.take(kForwards, p.copy_x);
    b_.communicate(kForwards, p.first_forward, 0);
    b_.take(kForwards, p.projected);
    b_.linear(kForwards, p.first);
    b_.drop(kForwards, p.whole_x), b_.drop(kForwards, p.copy_x);
    attends(p) ? attention(p) : activation(p);
    // What makes the block's output alone is not computed again.
    const PhaseSet out = p.is_last ? Phase::kForward | Phase::kEvaluate : kForwards;
    b_.take(out, s_.sequence ? p.whole_y : p.sum);
    b_.linear(out, p.last);
    if (s_.sequence) b_.take(out, p.sum);
    b_.communicate(out, p.last_forward, b_.copy_to_scatter());
    b_.drop(out, p.whole_y);
    b_.drop(kLose, p.norm.y), b_.drop(kLose, p.inner);
    if (attends(p)) b_.drop(kLose, p.projected);
    b_.dropout_forward(kAgain, out, p.mask, s_.mask);
    b_.drop(kLose, p.mask);
    b_.kernel(out, 0, 3 * s_.hidden);
    if (p.norm.x != b_.d.input) b_.drop(kLose, p.norm.x);
  }

  void attention(const Part& p) {
    const ModelConfig& m = s_.model;
    for (const HeadNorm& norm : p.heads) {  // one kind of heads after the other
      const int64_t values = b_.bytes(norm.values);
      b_.take(kAgain, norm.values), b_.take(kAgain, norm.statistics);
      b_.kernel(kAgain, values, 6 * values);
      b_.drop(kLose, norm.values), b_.drop(kLose, norm.statistics);
    }
    const int64_t turned = s_.activations((m.heads + m.kv_heads) * m.head_size);
    if (!m.traits().learned_positions) b_.kernel(m.qk_norm ? kAgain : kForwards, 0, 2 * turned);
    b_.take(kForwards, p.inner), b_.take(kForwards, p.logsumexp);
    b_.kernel(kForwards, attention_scratch(s_.input, m.head_size, kAttentionForward), s_.qkv + s_.q);
    for (const char* name : {"scores", "mix"}) core_product(kForwards, name);
    b_.drop(kLose, p.logsumexp);
  }

  // Flash attention: two products forward; backward those of q, k, v and of the probabilities, and the scores once more.
  void core_product(PhaseSet phases, const char* name) {
    const int64_t half = (s_.input.seq_len + 1) / 2;  // causal: of the S keys a query sees half on average
    b_.product(phases, {.name = name, .m = s_.input.seq_len, .n = half, .k = s_.model.head_size,
                        .count = s_.input.batch * s_.model.heads});
  }

  void activation(const Part& p) {
    b_.take(kAgain, p.inner);
    b_.kernel(kAgain, 0, s_.up + s_.ffn);
    b_.drop(kLose, p.projected);
  }

  void backward() {
    for (size_t i = parts_.size(); i-- > 0;) {
      const Part& p = parts_[i];
      const int dy = p.is_last ? dy_ : parts_[i + 1].dx;
      const int masked = backward_input(p);
      if (!p.is_last) b_.norm_backward_weight(parts_[i + 1].norm);
      backward_weight(p, s_.sequence ? p.whole_dy : s_.mask > 0 ? masked : dy);
      b_.join(kInputs, p.first_backward);
      b_.drop(kInputs, p.whole_dx), b_.drop(kInputs, p.copy_dx);
      b_.take(kInputs, p.dx);  // by the norm
      if (!p.is_last && !keeps_dy()) b_.drop(Phase::kInput | Phase::kBackward, dy);
    }
    b_.norm_backward_weight(parts_.front().norm);
    for (size_t i = 1; i < parts_.size() && !keeps_dy(); ++i) b_.drop(Phase::kOverlapped, parts_[i].dx);
  }

  // Until the gradient of the first linear's x is on its way. Returns dy without the dropped elements, a copy that only this
  // branch sees.
  int backward_input(const Part& p) {
    const int masked = b_.dropout_backward(p.mask);
    b_.take(kInputs, p.whole_dy);
    b_.communicate(kInputs, p.last_backward, b_.copy_to_gather());
    b_.take(kInputs, p.dinner);
    b_.linear_backward_input(p.last);
    if (attends(p)) attention_backward_input(p);
    b_.drop(kInputs, p.dinner);
    gather_input(Phase::kOverlapped, p);
    b_.take(kInputs, s_.sequence ? p.whole_dx : p.norm.dy);
    b_.linear_backward_input(p.first);
    if (s_.sequence) b_.take(kInputs, p.norm.dy), b_.take(kInputs, p.copy_dx);
    b_.start(kInputs, p.first_backward);
    if (s_.sequence) b_.drop(kInputs, masked);  // W takes the gathered one
    return masked;
  }

  void attention_backward_input(const Part& p) {
    // dq, dk, dv take the place of q, k, v.
    b_.kernel(kInputs, attention_scratch(s_.input, s_.model.head_size, kAttentionBackward));
    for (const char* name : {"scores.again", "scores.dq", "scores.dk", "mix.dp", "mix.dv"}) core_product(kInputs, name);
    b_.drop(kInputs, p.logsumexp);
    for (const HeadNorm& norm : p.heads) {  // those of what came in go back to their place
      b_.take(kInputs, norm.gradients);
      b_.kernel(kInputs, b_.bytes(norm.gradients));
    }
  }

  // With sequence parallelism all rows of x, for the weight gradient.
  void gather_input(PhaseSet phases, const Part& p) {
    b_.take(phases, p.whole_x), b_.take(phases, p.copy_x);
    b_.start(phases, p.first_gather);
  }

  void backward_weight(const Part& p, int dy) {
    b_.linear_backward_weight(p.last);
    b_.drop(kWeights, p.inner);
    b_.drop(dy == dy_ ? PhaseSet(Phase::kWeight) : kWeights, dy);  // in B the caller holds the block's own
    if (!p.heads.empty()) b_.kernel(kWeights, head_norm_scratch(s_.model.head_size));
    for (const HeadNorm& norm : p.heads)
      b_.drop(kWeights, norm.values), b_.drop(kWeights, norm.statistics), b_.drop(kWeights, norm.gradients);
    gather_input(Phase::kWeight | Phase::kBackward, p);
    b_.join(kWeights, p.first_gather);
    if (s_.sequence) b_.drop(kWeights, p.norm.y);  // the gathered rows take its place
    b_.linear_backward_weight(p.first);
    if (!s_.sequence) b_.drop(kWeights, p.norm.y);
    b_.drop(kWeights, p.whole_x), b_.drop(kWeights, p.copy_x);
    b_.drop(kWeights, p.projected);
  }

  LayerBuilder b_;
  const Sizes& s_;
  std::vector<Part> parts_;
  int dy_ = kNoValue;
};

}  // namespace

bool LayerDescription::has(Phase phase) const {
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) { return step.phases.has(phase); });
}

LayerDescription describe_block(const ModelConfig& model, const std::vector<Branch>& branches, const CostInput& input) {
  LOCKSTEP_CHECK(!branches.empty(), "a block without branches");
  return BlockBuilder(model, branches, input).take();
}

LayerDescription describe_layer(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  switch (layer.kind) {
    case LayerKind::kEmbedding:
      return describe_embedding(model, input);
    case LayerKind::kBlock:
      return describe_block(model, block_branches(model, layer.index), input);
    case LayerKind::kHead:
      return describe_head(model, input);
  }
  throw InternalError("no such layer");
}

}  // namespace lockstep::arch
