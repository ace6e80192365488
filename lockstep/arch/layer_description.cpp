#include "lockstep/arch/layer_description.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {
namespace {

// A block of branches, in the order in which model::Block and the layers below it allocate and release. Branches beside each
// other are a group: they read one x and make one sum.
class BlockBuilder {
 public:
  BlockBuilder(const ModelConfig& model, const BlockSpec& branches, const CostInput& input) : b_(model, input), s_(b_.s) {
    b_.d.branches = branches;
    parts_.resize(branches.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].kind = &branch_kind(branches[i].kind);
      parts_[i].group = branches[i].beside && i > 0 ? parts_[i - 1].group : i;
    }
    last_group_ = parts_.back().group;
    make_values();
    make_calls();
  }

  LayerDescription take() {
    for (size_t i = 0; i < parts_.size(); ++i) forward(i);
    backward();
    return std::move(b_.d);
  }

 private:
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();
  struct Part {
    const BranchKind* kind = nullptr;
    BranchLinears linears{};
    std::unique_ptr<BranchDescription> inside{};
    int dinner = kNoValue;  // the gradient of inside->inner
    size_t group = 0;  // its first part
    size_t keeper = kNobody;  // of the first of a group: the first of it that keeps dsum for W, the last to let it go
    int x = kNoValue;  // of the group: the block's input, or the sum before
    int h = kNoValue;  // what the branch reads: the output of a norm; kNoValue: x itself
    LayerBuilder::Norm norm{}, behind{};
    int mask = kNoValue;
    int y = kNoValue;     // of the last linear: `made`, or what the norm behind takes
    int made = kNoValue;  // what is added; of the first of a group the sum itself
    int dsum = kNoValue;  // the gradient of the group's sum ...
    int dy = kNoValue;    // ... and of y, where that is another tensor
    int dh = kNoValue;
    int dx = kNoValue;    // dsum and the gradients of x from here to the end of the group; none where h is shared
    // With sequence parallelism.
    int whole_x = kNoValue, copy_x = kNoValue, whole_y = kNoValue, whole_dy = kNoValue, whole_dx = kNoValue, copy_dx = kNoValue;
    // Calls, in the order of LayerDescription::calls.
    static constexpr int kNone = LayerBuilder::kNoCall;
    int first_forward = kNone, last_forward = kNone, last_backward = kNone, first_gather = kNone, first_backward = kNone;
  };

  const Branch& spec(size_t i) const { return b_.d.branches[i]; }
  bool begins(size_t i) const { return parts_[i].group == i; }
  bool shares_next(size_t i) const { return i + 1 < parts_.size() && spec(i + 1).shares_input(); }

  void make_values() {
    int x = b_.d.input = b_.hidden({"input", Recompute::kFull});
    dy_ = b_.hidden();
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& p = parts_[i];
      if (begins(i) && i > 0) x = b_.d.output;
      p.x = x;
      make_values(i);
      if (begins(i)) b_.d.output = p.made;
    }
    for (Part& p : parts_) p.mask = b_.mask({"dropout masks", Recompute::kNone});
    int dsum = dy_;
    for (size_t i = parts_.size(); i-- > 0;) {
      parts_[i].dsum = dsum;
      if (begins(i)) dsum = parts_[i].dx;
      if (keeps_dsum(i)) parts_[parts_[i].group].keeper = i;
    }
  }

  void make_values(size_t i) {
    Part& p = parts_[i];
    const Branch& branch = spec(i);
    const bool is_kept = begins(i) && p.group != last_group_;
    if (branch.norm_before) {
      if (begins(i)) p.norm.x = p.x;  // the first of a group is the last to let it go
      p.norm.statistics = b_.statistics({"norm statistics", Recompute::kSelective});
      p.h = p.norm.y = b_.hidden({"norm outputs", Recompute::kNone});
    } else if (branch.beside) {
      p.h = parts_[i - 1].h;
    }
    p.dh = p.norm.dy = b_.hidden();
    p.linears = p.kind->linears(s_.model);
    p.inside = p.kind->describe(b_, p.linears);
    p.dinner = b_.activations(p.linears.last.in);
    p.y = p.made = is_kept ? b_.hidden({p.kind->sum, Recompute::kSelective}) : b_.hidden();
    if (branch.norm_behind) {
      p.y = b_.hidden({"branch outputs", Recompute::kSelective});
      p.behind = {.x = p.y, .y = p.made, .statistics = b_.statistics({"norm statistics", Recompute::kSelective}), .dy = kNoValue};
      p.dy = b_.hidden();
    }
    if (!branch.shares_input()) p.dx = branch.norm_before ? b_.hidden() : p.dh;
    p.whole_x = b_.whole(), p.whole_y = b_.whole(), p.whole_dy = b_.whole(), p.whole_dx = b_.whole();
    if (s_.uneven) p.copy_x = b_.hidden(), p.copy_dx = b_.whole();
  }

  void make_calls() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& p = parts_[i];
      const std::string first = spec(i).part(p.linears.first.name), last = spec(i).part(p.linears.last.name);
      p.first_forward = b_.gather_rows(first, CallPhase::kForward);
      p.last_forward = b_.reduce_output(last, CallPhase::kForward);
      p.last_backward = b_.gather_rows(last, CallPhase::kBackward);
      p.first_gather = b_.gather_rows(first, CallPhase::kGather);
      p.first_backward = b_.reduce_output(first, CallPhase::kBackward);
    }
  }

  void forward(size_t i) {
    const Part& p = parts_[i];
    const BranchDescription& inside = *p.inside;
    // Which adds what came of the group before it.
    if (spec(i).norm_before) b_.norm_forward(kAgain, kLose | Phase::kRestore, p.norm);
    if (begins(i) && i > 0) drop_sum(parts_[i - 1].x);
    b_.take(kForwards, p.whole_x), b_.take(kForwards, p.copy_x);
    b_.communicate(kForwards, p.first_forward, 0);
    b_.take(kForwards, inside.projected);
    b_.linear(kForwards, p.linears.first);
    b_.drop(kForwards, p.whole_x), b_.drop(kForwards, p.copy_x);
    inside.forward(b_);
    if (!inside.views_projected) b_.drop(kLose, inside.projected);
    // What makes the block's output alone is not computed again.
    const PhaseSet sums = p.group == last_group_ ? Phase::kForward | Phase::kEvaluate : kForwards;
    forward_output(i, spec(i).norm_behind ? kForwards : sums);
    b_.dropout_forward(kAgain, sums, p.mask, s_.mask);
    b_.drop(kLose, p.mask);
    b_.kernel(sums, 0, 3 * s_.hidden);
    if (!begins(i)) b_.drop(sums, p.made);
    if (i + 1 == parts_.size()) drop_sum(p.x);
  }

  // Where nothing is kept; the caller holds the block's input.
  void drop_sum(int x) {
    if (x != b_.d.input) b_.drop(kLose, x);
  }

  // The last linear and the norm behind.
  void forward_output(size_t i, PhaseSet phases) {
    const Part& p = parts_[i];
    const BranchDescription& inside = *p.inside;
    b_.take(phases, s_.sequence ? p.whole_y : p.y);
    b_.linear(phases, p.linears.last);
    if (s_.sequence) b_.take(phases, p.y);
    b_.communicate(phases, p.last_forward, b_.copy_to_scatter());
    b_.drop(phases, p.whole_y);
    if (!shares_next(i)) b_.drop(kLose, p.h);
    b_.drop(kLose, inside.inner);
    if (inside.views_projected) b_.drop(kLose, inside.projected);
    if (!spec(i).norm_behind) return;
    b_.norm_forward(phases, kLose, p.behind);
    b_.drop(kLose, p.y);
    if (p.group == last_group_) b_.drop(Phase::kRecompute, p.made);
  }

  void backward() {
    int dx = dy_;  // of the part before in this order
    for (size_t i = parts_.size(); i-- > 0;) {
      const Part& p = parts_[i];
      backward_input(i);
      if (i + 1 < parts_.size()) backward_weight_of_norm(i + 1);
      backward_weight(i);
      b_.join(kInputs, p.first_backward);
      b_.drop(kInputs, p.whole_dx), b_.drop(kInputs, p.copy_dx);
      if (shares_next(i)) b_.drop(kInputs, parts_[i + 1].dh);  // added to this one
      if (spec(i).shares_input()) continue;
      if (spec(i).norm_before) b_.take(kInputs, p.dx);  // by the norm
      if (dx != p.dsum) b_.drop(kInputs, dx);
      dx = p.dx;
      if (begins(i) && p.dsum != dy_ && p.keeper == kNobody) b_.drop(kInputs, p.dsum);
    }
    backward_weight_of_norm(0);
  }

  // As it came: the last linear does, where it takes all of it, or the norm behind.
  bool keeps_dsum(size_t i) const { return s_.mask == 0 && (spec(i).norm_behind || !s_.sequence); }
  void drop_dsum(size_t i) {
    const Part& p = parts_[i];
    if (parts_[p.group].keeper != i) return;
    b_.drop(p.dsum == dy_ ? PhaseSet(Phase::kWeight) : kWeights, p.dsum);  // in B the caller holds the block's own
  }

  // Until the gradient of the first linear's x is on its way.
  void backward_input(size_t i) {
    Part& p = parts_[i];
    const int masked = b_.dropout_backward(p.mask);  // a copy that only this branch sees
    if (spec(i).norm_behind)
      p.behind.dy = masked, b_.take(kInputs, p.dy);
    else
      p.dy = masked;
    b_.take(kInputs, p.whole_dy);
    b_.communicate(kInputs, p.last_backward, b_.copy_to_gather());
    b_.take(kInputs, p.dinner);
    b_.linear_backward_input(p.linears.last);
    p.inside->backward_input(b_);
    b_.drop(kInputs, p.dinner);
    gather_input(Phase::kOverlapped, p);
    b_.take(kInputs, s_.sequence ? p.whole_dx : p.dh);
    b_.linear_backward_input(p.linears.first);
    if (s_.sequence) b_.take(kInputs, p.dh), b_.take(kInputs, p.copy_dx);
    b_.start(kInputs, p.first_backward);
    if (s_.sequence) b_.drop(kInputs, p.dy);  // W takes the gathered one
  }

  // With sequence parallelism all rows of x, for the weight gradient.
  void gather_input(PhaseSet phases, const Part& p) {
    b_.take(phases, p.whole_x), b_.take(phases, p.copy_x);
    b_.start(phases, p.first_gather);
  }

  void backward_weight_of_norm(size_t i) {
    if (spec(i).norm_before) b_.norm_backward_weight(parts_[i].norm);
  }

  void backward_weight(size_t i) {
    const Part& p = parts_[i];
    const int read = spec(i).norm_before ? p.h : begins(i) ? p.x : kNoValue;  // a shared one goes with its first reader
    if (spec(i).norm_behind) b_.norm_backward_weight(p.behind), drop_dsum(i);
    b_.linear_backward_weight(p.linears.last);
    b_.drop(kWeights, p.inside->inner);
    b_.drop(kWeights, s_.sequence ? p.whole_dy : p.dy);
    if (!spec(i).norm_behind) drop_dsum(i);
    p.inside->backward_weight(b_);
    gather_input(Phase::kWeight | Phase::kBackward, p);
    b_.join(kWeights, p.first_gather);
    if (s_.sequence) b_.drop(kWeights, read);  // the gathered rows take its place
    b_.linear_backward_weight(p.linears.first);
    if (!s_.sequence) b_.drop(kWeights, read);
    b_.drop(kWeights, p.whole_x), b_.drop(kWeights, p.copy_x);
    b_.drop(kWeights, p.inside->projected);
  }

  LayerBuilder b_;
  const Sizes& s_;
  std::vector<Part> parts_;
  size_t last_group_ = 0;
  int dy_ = kNoValue;
};

}  // namespace

LayerDescription describe_layer(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  if (layer.kind == LayerKind::kEmbedding) return describe_embedding(model, input);
  if (layer.kind == LayerKind::kHead) return describe_head(model, input);
  return BlockBuilder(model, block_branches(model, layer.index), input).take();
}

std::vector<Value> block_kept_parts(const ModelConfig& model, const CostInput& input) {
  std::vector<Value> parts;
  for (const Value& value : describe_layer(model, layer_spec(model, 1), input).values) {
    if (value.kept.as.empty()) continue;
    const auto part = std::ranges::find_if(parts, [&](const Value& other) { return other.kept.as == value.kept.as; });
    if (part == parts.end())
      parts.push_back(value);
    else
      part->bytes += value.bytes;
  }
  return parts;
}

}  // namespace lockstep::arch
