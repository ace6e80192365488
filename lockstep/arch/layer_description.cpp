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
    std::unique_ptr<WholeBranch> branch{};
    size_t group = 0;  // its first part
    size_t keeper = kNobody;  // of the first of a group: the first of it that keeps dsum for W, the last to let it go
    int x = kNoValue;  // of the group: the block's input, or the sum before
    int h = kNoValue;  // what the branch reads: the output of a norm; kNoValue: x itself
    LayerBuilder::Norm norm{}, behind{};
    int mask = kNoValue;
    int y = kNoValue;     // of the branch: `made`, or what the norm behind takes
    int made = kNoValue;  // what is added; of the first of a group the sum itself
    int dsum = kNoValue;  // the gradient of the group's sum ...
    int dy = kNoValue;    // ... and of y, where that is another tensor
    int dh = kNoValue;
    int dx = kNoValue;    // dsum and the gradients of x from here to the end of the group; none where h is shared
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
    p.branch = branch_of(i);
    p.y = p.made = is_kept ? b_.hidden({p.kind->sum, Recompute::kSelective}) : b_.hidden();
    if (branch.norm_behind) {
      p.y = b_.hidden({"branch outputs", Recompute::kSelective});
      p.behind = {.x = p.y, .y = p.made, .statistics = b_.statistics({"norm statistics", Recompute::kSelective}), .dy = kNoValue};
      p.dy = b_.hidden();
    }
    if (!branch.shares_input()) p.dx = branch.norm_before ? b_.hidden() : p.dh;
  }

  std::unique_ptr<WholeBranch> branch_of(size_t i) {
    const BranchKind& kind = *parts_[i].kind;
    if (kind.describe_whole) return kind.describe_whole(b_, spec(i));
    const BranchLinears linears = kind.linears(s_.model);
    return new_linear_branch(b_, spec(i), linears, kind.describe(b_, linears));
  }

  void forward(size_t i) {
    const Part& p = parts_[i];
    // Which adds what came of the group before it.
    if (spec(i).norm_before) b_.norm_forward(kAgain, kLose | Phase::kRestore, p.norm);
    if (begins(i) && i > 0) drop_sum(parts_[i - 1].x);
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

  // The branch and the norm behind.
  void forward_output(size_t i, PhaseSet phases) {
    const Part& p = parts_[i];
    p.branch->forward(b_, {.x = p.h, .y = p.y}, phases);
    if (!shares_next(i)) b_.drop(kLose, p.h);
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
      p.branch->finish_input(b_, ends_of(i), kInputs);
      if (shares_next(i)) b_.drop(kInputs, parts_[i + 1].dh);  // added to this one
      if (spec(i).shares_input()) continue;
      if (spec(i).norm_before) b_.take(kInputs, p.dx);  // by the norm
      if (dx != p.dsum) b_.drop(kInputs, dx);
      dx = p.dx;
      if (begins(i) && p.dsum != dy_ && p.keeper == kNobody) b_.drop(kInputs, p.dsum);
    }
    backward_weight_of_norm(0);
  }

  // As it came: the branch does, or the norm behind.
  bool keeps_dsum(size_t i) const { return s_.mask == 0 && (spec(i).norm_behind || parts_[i].branch->keeps_dy()); }

  BranchEnds ends_of(size_t i) const {
    const Part& p = parts_[i];
    BranchEnds ends{.x = kNoValue, .y = p.y, .dy = p.dy, .dx = p.dh};
    if (parts_[p.group].keeper == i) {
      ends.dsum = p.dsum;
      ends.lose_dsum = p.dsum == dy_ ? PhaseSet(Phase::kWeight) : kWeights;  // in B the caller holds the block's own
    }
    return ends;
  }

  // Until the gradient of what the branch reads is on its way.
  void backward_input(size_t i) {
    Part& p = parts_[i];
    const int masked = b_.dropout_backward(p.mask);  // a copy that only this branch sees
    if (spec(i).norm_behind)
      p.behind.dy = masked, b_.take(kInputs, p.dy);
    else
      p.dy = masked;
    p.branch->backward_input(b_, ends_of(i));
  }

  void backward_weight_of_norm(size_t i) {
    if (spec(i).norm_before) b_.norm_backward_weight(parts_[i].norm);
  }

  void backward_weight(size_t i) {
    const Part& p = parts_[i];
    BranchEnds ends = ends_of(i);
    ends.x = spec(i).norm_before ? p.h : begins(i) ? p.x : kNoValue;  // a shared one goes with its first reader
    if (spec(i).norm_behind) {
      b_.norm_backward_weight(p.behind);
      b_.drop(ends.lose_dsum, std::exchange(ends.dsum, kNoValue));
    }
    p.branch->backward_weight(b_, ends);
  }

  LayerBuilder b_;
  const Sizes& s_;
  std::vector<Part> parts_;
  size_t last_group_ = 0;
  int dy_ = kNoValue;
};

}  // namespace

RowsWay rows_way(const LayerCall& call) {
  if (call.over != CallGroup::kExperts) return RowsWay::kNone;
  if (call.part.find(".dispatch") != std::string::npos) return RowsWay::kToExperts;
  return call.part.find(".combine") != std::string::npos ? RowsWay::kBack : RowsWay::kNone;
}

LayerDescription describe_layer(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  if (layer.kind == LayerKind::kEmbedding) return describe_embedding(model, input);
  if (layer.kind == LayerKind::kHead) return describe_head(model, input);
  const BlockSpec branches = block_branches(model, layer.index);
  if (window_of_layer(model, layer.index) == model.sliding_window) return BlockBuilder(model, branches, input).take();
  return BlockBuilder(model_of_layer(model, layer.index), branches, input).take();
}

std::vector<Value> block_kept_parts(const ModelConfig& model, const CostInput& input, int layer) {
  std::vector<Value> parts;
  for (const Value& value : describe_layer(model, layer_spec(model, layer), input).values) {
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
