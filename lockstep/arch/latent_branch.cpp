// A branch of latent attention, in the order in which nn/latent_attention and parallel/tensor allocate and release.
#include "lockstep/arch/latent_branch.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/arch/context_attention.h"

namespace lockstep::arch {
namespace {

// A latent: the columns of `down` that it is, behind its norm, gathered over tp, and the linear that makes heads of it.
struct Latent {
  int64_t width = 0;
  std::string_view up{};  // of the linear
  int64_t out = 0;        // of it, of this rank
  int x = kNoValue, statistics = kNoValue, y = kNoValue;  // of the norm; dy of the norm, and its dx
  int dy = kNoValue, dx = kNoValue;
  int whole = kNoValue, dwhole = kNoValue, copy = kNoValue, dcopy = kNoValue;  // with sequence parallelism: of all rows, and padded copies
  int heads = kNoValue, dheads = kNoValue;  // that the linear makes, of all rows; their gradient
  int forward = LayerBuilder::kNoCall, gather = LayerBuilder::kNoCall, backward = LayerBuilder::kNoCall;
};

class LatentBranch : public WholeBranch {
 public:
  LatentBranch(LayerBuilder& b, const Branch& branch)
      : s_(b.s), sizes_(s_.model.latent), heads_(s_.model.heads),
        q_{.width = sizes_.q_rank, .up = "q_b", .out = heads_ * sizes_.head()},
        kv_{.width = sizes_.kv_rank, .up = "kv_b", .out = heads_ * (sizes_.nope + sizes_.value)},
        core_(s_, attention_heads()) {
    make_values(b);
    key_forward_ = gather(b, branch, "k_rope", CallPhase::kForward, sizes_.rope);
    for (Latent* l : {&q_, &kv_}) l->forward = gather(b, branch, l->up, CallPhase::kForward, l->width);
    if (context_) context_->make_forward_calls(b, branch);
    out_forward_ = b.reduce_output(branch.part("out"), CallPhase::kForward);
    out_backward_ = b.gather_rows(branch.part("out"), CallPhase::kBackward);
    if (context_) context_->make_backward_calls(b, branch);
    key_backward_ = reduce(b, branch, "k_rope", sizes_.rope);
    for (Latent* l : {&q_, &kv_}) {
      if (!travels(*l)) l->gather = gather(b, branch, l->up, CallPhase::kGather, l->width);
      l->backward = reduce(b, branch, l->up, l->width);
    }
  }

  bool keeps_dy() const override { return !s_.sequence; }

  void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    down(b);
    for (const Latent* l : {&q_, &kv_}) norm_forward(b, travels(*l) ? kForwards : kAgain, *l);
    b.take(kForwards, key_whole_);
    b.communicate(kForwards, key_forward_, s_.uneven ? rows(sizes_.rope) : 0);
    if (s_.sequence) b.drop(kForwards, key_);
    up(b, q_);
    travels(kv_) ? gather_latents(b) : up(b, kv_);
    const int key = s_.sequence ? key_whole_ : key_;
    // Interleaved pairs are copied.
    b.kernel(kForwards, sizes_.interleaved ? s_.activations(heads_ * sizes_.rope) : 0, 2 * s_.activations(heads_ * sizes_.rope));
    if (travels(kv_)) {
      b.take(kForwards, block_);
      b.drop(kForwards, s_.sequence ? kv_.whole : kv_.y);
    } else {
      b.take(kForwards, v_), b.take(kForwards, k_);
      b.kernel(kForwards, 0, 2 * b.bytes(kv_.heads) + s_.activations(heads_ * sizes_.rope));
      b.drop(kForwards, kv_.heads);
    }
    b.drop(kForwards, key);
    const int64_t traffic = b.bytes(q_.heads) + b.bytes(k_) + b.bytes(v_) + b.bytes(inner_);
    if (context_) {
      context_->forward(b, inner_, logsumexp_);
      b.kernel(kForwards, 0, traffic);
    } else {
      b.take(kForwards, spans_), b.take(kForwards, inner_), b.take(kForwards, logsumexp_);
      b.kernel(kForwards, attention_scratch(s_, widest(), {.sequences = 2, .blocks = 3, .keys = s_.input.seq_len}), traffic);
    }
    core_product(b, kForwards, "scores", sizes_.head());
    core_product(b, kForwards, "mix", sizes_.value);
    if (travels(kv_)) make_products(b, kForwards, {Product::Role::kOutput});
    for (const int value : {logsumexp_, spans_, q_.heads, k_, v_, block_}) b.drop(kLose, value);
    b.take(outputs, s_.sequence ? whole_y_ : ends.y);
    b.linear(outputs, out());
    if (s_.sequence) b.take(outputs, ends.y);
    b.communicate(outputs, out_forward_, b.copy_to_scatter());
    b.drop(outputs, whole_y_);
    b.drop(kLose, inner_);
  }

  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    b.take(kInputs, whole_dy_);
    b.communicate(kInputs, out_backward_, b.copy_to_gather());
    b.take(kInputs, dinner_);
    b.linear_backward_input(out());
    // dq, dk, dv take the place of q, k, v.
    if (context_) context_->backward(b);
    else b.kernel(kInputs, attention_scratch(s_, widest(), {.sequences = 4, .blocks = 5, .keys = s_.input.seq_len}));
    for (const char* name : {"scores.again", "scores.dq", "scores.dk"}) core_product(b, kInputs, name, sizes_.head());
    for (const char* name : {"mix.dp", "mix.dv"}) core_product(b, kInputs, name, sizes_.value);
    b.drop(kInputs, logsumexp_), b.drop(kInputs, spans_), b.drop(kInputs, dinner_);
    if (travels(kv_)) {
      make_products(b, kInputs, {Product::Role::kOutput, Product::Role::kInputGradient, Product::Role::kWeightGradient});
      b.drop(kInputs, block_), b.take(kInputs, dblock_);
    }
    b.kernel(kInputs, sizes_.interleaved ? s_.activations(heads_ * sizes_.rope) : 0);
    b.take(kInputs, dkey_);
    b.kernel(kInputs, sizes_.interleaved ? b.bytes(dkey_) : 0);
    b.take(kInputs, travels(kv_) ? dlatents() : kv_.dheads);
    b.kernel(kInputs, 0);
    b.drop(kInputs, k_), b.drop(kInputs, v_), b.drop(kInputs, dblock_);
    b.take(kInputs, dkey_own_);
    b.communicate(kInputs, key_backward_, s_.uneven ? rows(sizes_.rope) * s_.input.tensor.size : 0);
    if (s_.sequence) b.drop(kInputs, dkey_);
    for (const Latent* l : {&q_, &kv_}) latent_backward_input(b, *l);
    b.take(kInputs, dz_);
    b.kernel(kInputs, 0);
    for (const int value : {q_.dx, kv_.dx, s_.sequence ? dkey_own_ : dkey_}) b.drop(kInputs, value);
    b.take(kInputs, ends.dx);
    product(b, kInputs, Product::Role::kInputGradient);
    if (s_.sequence) b.drop(kInputs, ends.dy);  // W takes the gathered one
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    b.linear_backward_weight(out());
    b.drop(kWeights, inner_);
    b.drop(kWeights, s_.sequence ? whole_dy_ : ends.dy);
    b.drop(ends.lose_dsum, ends.dsum);
    for (const Latent* l : {&q_, &kv_}) {
      b.kernel(kWeights, row_sum_scratch(s_.rows, 2 * l->width));
      b.drop(kWeights, l->x), b.drop(kWeights, l->dy), b.drop(kWeights, l->statistics);
    }
    for (const Latent* l : {&q_, &kv_}) {
      if (travels(*l)) continue;  // all of it was made in I
      b.take(kWeights, l->whole), b.take(kWeights, l->copy);
      b.communicate(kWeights, l->gather, 0);
      if (s_.sequence) b.drop(kWeights, l->y);  // the gathered rows take its place
      b.linear_backward_weight(linear(*l));
      if (!s_.sequence) b.drop(kWeights, l->y);
      b.drop(kWeights, l->whole), b.drop(kWeights, l->copy);
      b.drop(kWeights, l == &q_ ? q_.heads : l->dheads);
    }
    product(b, kWeights, Product::Role::kWeightGradient);
    b.drop(kWeights, ends.x), b.drop(kWeights, dz_);
  }

  void finish_input(LayerBuilder&, const BranchEnds&, PhaseSet) const override {}  // nothing is on its way

 private:
  int64_t rows(int64_t width) const { return s_.rows * width * s_.input.element_size; }  // bytes of the rows here

  void make_values(LayerBuilder& b) {
    const auto own = [&](int64_t width, Kept kept = {}) { return b.value(rows(width), kept); };
    constexpr Kept kHeads{"q, k, v", Recompute::kSelective};
    for (Latent* l : {&q_, &kv_}) {
      l->x = own(l->width, {"latents", Recompute::kSelective});
      l->statistics = b.value(4 * s_.rows, {"norm statistics", Recompute::kSelective});
      l->y = own(l->width, travels(*l) ? Kept{} : Kept{"latents behind their norms", Recompute::kNone});
      l->dy = own(l->width), l->dx = own(l->width);
    }
    q_.heads = b.activations(q_.out, kHeads);  // its gradient takes its place
    if (travels(kv_)) {
      block_ = b.activations(sizes_.kv_rank + sizes_.rope, {"latents that travel", Recompute::kSelective});
      dblock_ = b.activations(sizes_.kv_rank + sizes_.rope);
    } else {
      k_ = b.activations(heads_ * sizes_.head(), kHeads);
      v_ = b.activations(heads_ * sizes_.value, kHeads);
      kv_.heads = b.activations(kv_.out), kv_.dheads = b.activations(kv_.out);
    }
    inner_ = b.activations(heads_ * sizes_.value, {"attention output", Recompute::kSelective});
    if (core_.exchanged == 1) logsumexp_ = b.value(4 * s_.tokens * heads_, {"attention logsumexp", Recompute::kSelective});
    spans_ = b.value(span_bytes(s_), {"attention spans", Recompute::kSelective});
    if (s_.input.context.ranks > 1) context_.emplace(b, attention_heads());
    dinner_ = b.activations(heads_ * sizes_.value);
    z_ = own(sizes_.projected()), dz_ = own(sizes_.projected());
    key_ = own(sizes_.rope), dkey_ = b.activations(sizes_.rope);
    whole_y_ = b.whole(), whole_dy_ = b.whole();
    if (!s_.sequence) return;
    const int64_t ranks = s_.input.tensor.size;
    key_whole_ = b.value(ranks * rows(sizes_.rope)), dkey_own_ = own(sizes_.rope);
    for (Latent* l : {&q_, &kv_}) {
      l->whole = b.value(ranks * rows(l->width)), l->dwhole = b.activations(l->width);
      if (s_.uneven) l->copy = own(l->width), l->dcopy = b.value(ranks * rows(l->width));
    }
  }

  int gather(LayerBuilder& b, const Branch& branch, std::string_view part, CallPhase phase, int64_t width) const {
    if (!s_.sequence) return LayerBuilder::kNoCall;
    return b.call({.part = branch.part(part), .phase = phase, .collective = Collective::kAllGather,
                   .numel = s_.rows * s_.input.tensor.size * width, .element_size = s_.input.element_size});
  }
  int reduce(LayerBuilder& b, const Branch& branch, std::string_view part, int64_t width) const {
    return b.call({.part = branch.part(part), .phase = CallPhase::kBackward,
                   .collective = s_.sequence ? Collective::kReduceScatter : Collective::kAllReduce,
                   .numel = (s_.sequence ? s_.rows * s_.input.tensor.size : s_.tokens) * width,
                   .element_size = s_.input.element_size});
  }

  // The product of this rank's rows, and its columns apart.
  void down(LayerBuilder& b) const {
    b.take(kForwards, z_);
    product(b, kForwards, Product::Role::kOutput);
    b.take(kForwards, q_.x), b.take(kForwards, kv_.x), b.take(kForwards, key_);
    b.kernel(kForwards, 0, 2 * b.bytes(z_));
    b.drop(kForwards, z_);
  }

  void norm_forward(LayerBuilder& b, PhaseSet phases, const Latent& l) const {
    b.take(phases, l.y), b.take(phases, l.statistics);
    b.kernel(phases, 0, 2 * rows(l.width));
    b.drop(phases.has(Phase::kRestore) ? kLose | Phase::kRestore : kLose, l.statistics);
    b.drop(kLose, l.x);
  }

  void up(LayerBuilder& b, const Latent& l) const {
    b.take(kForwards, l.whole), b.take(kForwards, l.copy);
    b.communicate(kForwards, l.forward, 0);
    b.take(kForwards, l.heads);
    b.linear(kForwards, linear(l));
    b.drop(kForwards, l.whole), b.drop(kForwards, l.copy);
    b.drop(kLose, l.y);
  }

  void latent_backward_input(LayerBuilder& b, const Latent& l) const {
    if (!travels(l)) b.take(kInputs, s_.sequence ? l.dwhole : l.dy);  // else it is there
    if (!travels(l)) b.linear_backward_input(linear(l));
    if (s_.sequence) b.take(kInputs, l.dy), b.take(kInputs, l.dcopy);
    b.communicate(kInputs, l.backward, 0);
    b.drop(kInputs, l.dwhole), b.drop(kInputs, l.dcopy);
    b.take(kInputs, l.dx);
    b.kernel(kInputs, 0);
  }

  // Latents go round in the place of keys and values (nn/latent_travel.cpp).
  bool travels(const Latent& l) const { return &l == &kv_ && core_.ring > 1 && core_.exchanged == 1; }
  int dlatents() const { return s_.sequence ? kv_.dwhole : kv_.dy; }
  void gather_latents(LayerBuilder& b) const {
    b.take(kForwards, kv_.whole), b.take(kForwards, kv_.copy);
    b.communicate(kForwards, kv_.forward, 0);
    b.drop(kForwards, kv_.copy);
    if (s_.sequence) b.drop(kForwards, kv_.y);
  }
  // Of keys and values of every block that has come.
  void make_products(LayerBuilder& b, PhaseSet phases, std::initializer_list<Product::Role> roles) const {
    const int64_t blocks = core_.ring;
    for (const Product::Role role : roles) switch (role) {
        case Product::Role::kOutput:
          b.product(phases, {.name = "kv_b", .m = s_.tokens, .n = kv_.out, .k = kv_.width, .count = blocks});
          break;
        case Product::Role::kInputGradient:
          b.product(phases, {.name = "kv_b", .role = role, .m = s_.tokens, .n = kv_.width, .k = kv_.out, .count = blocks});
          break;
        case Product::Role::kWeightGradient:
          b.product(phases, {.name = "kv_b", .role = role, .m = kv_.out, .n = kv_.width, .k = s_.tokens, .count = blocks},
                    weight_gradient_scratch(s_.input, kv_.width, kv_.out));
          break;
      }
  }
  AttentionHeads attention_heads() const {
    return {.queries = heads_, .keys = heads_, .key_width = sizes_.head(), .value_width = sizes_.value,
            .latent = sizes_.kv_rank + sizes_.rope, .shared_key = sizes_.rope};
  }

  LayerBuilder::Linear linear(const Latent& l) const { return {.name = l.up, .in = l.width, .out = l.out}; }
  LayerBuilder::Linear out() const { return {.name = "out", .in = heads_ * sizes_.value, .out = s_.model.hidden}; }

  // Of `down`.
  void product(LayerBuilder& b, PhaseSet phases, Product::Role role) const {
    const int64_t n = sizes_.projected(), k = s_.model.hidden;
    switch (role) {
      case Product::Role::kOutput:
        return b.product(phases, {.name = "qkv_a", .m = s_.rows, .n = n, .k = k}, product_scratch(s_.input, s_.rows, k));
      case Product::Role::kInputGradient:
        return b.product(phases, {.name = "qkv_a", .role = role, .m = s_.rows, .n = k, .k = n},
                         product_scratch(s_.input, s_.rows, n, k));
      case Product::Role::kWeightGradient:
        return b.product(phases, {.name = "qkv_a", .role = role, .m = n, .n = k, .k = s_.rows}, weight_gradient_scratch(s_.input, k, n));
    }
  }

  // As that of attention, of heads as wide as `width`.
  void core_product(LayerBuilder& b, PhaseSet phases, const char* name, int64_t width) const {
    b.product(phases, {.name = name, .m = core_.of_sequence, .n = core_.keys_seen, .k = width, .count = s_.input.batch * core_.queries});
  }

  int64_t widest() const { return std::max(sizes_.head(), sizes_.value); }

  const Sizes& s_;
  const LatentSizes sizes_;
  const int64_t heads_;  // of this rank
  Latent q_, kv_;
  const ContextPlan core_;
  std::optional<ContextAttention> context_{};  // none: whole sequences
  int z_ = kNoValue, dz_ = kNoValue, key_ = kNoValue, key_whole_ = kNoValue, dkey_ = kNoValue, dkey_own_ = kNoValue;
  int spans_ = kNoValue;  // which keys tokens see
  int block_ = kNoValue, dblock_ = kNoValue;  // of latents that travel
  int k_ = kNoValue, v_ = kNoValue, inner_ = kNoValue, logsumexp_ = kNoValue, dinner_ = kNoValue;
  int whole_y_ = kNoValue, whole_dy_ = kNoValue;
  static constexpr int kNone = LayerBuilder::kNoCall;
  int key_forward_ = kNone, key_backward_ = kNone, out_forward_ = kNone, out_backward_ = kNone;
};

}  // namespace

std::unique_ptr<WholeBranch> new_latent_branch(LayerBuilder& b, const Branch& branch) { return std::make_unique<LatentBranch>(b, branch); }

}  // namespace lockstep::arch
