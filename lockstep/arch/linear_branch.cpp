// A branch of two linears, in the order in which nn/ and parallel/ allocate and release.
#include <utility>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {
namespace {

class LinearBranch : public LinearPair {
 public:
  LinearBranch(LayerBuilder& b, const Branch& branch, BranchLinears linears, std::unique_ptr<BranchDescription> inside)
      : linears_(std::move(linears)), inside_(std::move(inside)), sequence_(b.s.sequence) {
    dinner_ = b.activations(linears_.last.in);
    whole_x_ = b.whole(), whole_y_ = b.whole(), whole_dy_ = b.whole(), whole_dx_ = b.whole();
    if (b.s.uneven) copy_x_ = b.hidden(), copy_dx_ = b.whole();
    const std::string first = branch.part(linears_.first.name), last = branch.part(linears_.last.name);
    first_forward_ = b.gather_rows(first, CallPhase::kForward);
    inside_->make_forward_calls(b, branch);
    last_forward_ = b.reduce_output(last, CallPhase::kForward);
    last_backward_ = b.gather_rows(last, CallPhase::kBackward);
    inside_->make_backward_calls(b, branch);
    first_gather_ = b.gather_rows(first, CallPhase::kGather);
    first_backward_ = b.reduce_output(first, CallPhase::kBackward);
  }

  bool keeps_dy() const override { return !sequence_; }

  void forward_first(LayerBuilder& b) const override {
    b.take(kForwards, whole_x_), b.take(kForwards, copy_x_);
    b.communicate(kForwards, first_forward_, 0);
    b.take(kForwards, inside_->projected);
    b.linear(kForwards, linears_.first);
    b.drop(kForwards, whole_x_), b.drop(kForwards, copy_x_);
    inside_->forward(b);
    if (!inside_->views_projected) b.drop(kLose, inside_->projected);
  }

  void forward_last(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    b.take(outputs, sequence_ ? whole_y_ : ends.y);
    b.linear(outputs, linears_.last);
    if (sequence_) b.take(outputs, ends.y);
    b.communicate(outputs, last_forward_, b.copy_to_scatter());
    b.drop(outputs, whole_y_);
    b.drop(kLose, inside_->inner);
    if (inside_->views_projected) b.drop(kLose, inside_->projected);
  }

  void backward_last(LayerBuilder& b) const override {
    b.take(kInputs, whole_dy_);
    b.communicate(kInputs, last_backward_, b.copy_to_gather());
    b.take(kInputs, dinner_);
    b.linear_backward_input(linears_.last);
    inside_->backward_input(b);
    b.drop(kInputs, dinner_);
  }

  void backward_first(LayerBuilder& b, const BranchEnds& ends) const override {
    gather_input(b, Phase::kOverlapped);
    b.take(kInputs, sequence_ ? whole_dx_ : ends.dx);
    b.linear_backward_input(linears_.first);
    if (sequence_) b.take(kInputs, ends.dx), b.take(kInputs, copy_dx_);
    b.start(kInputs, first_backward_);
    if (sequence_) b.drop(kInputs, ends.dy);  // W takes the gathered one
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    b.linear_backward_weight(linears_.last);
    b.drop(kWeights, inside_->inner);
    b.drop(kWeights, sequence_ ? whole_dy_ : ends.dy);
    b.drop(ends.lose_dsum, ends.dsum);
    inside_->backward_weight(b);
    gather_input(b, Phase::kWeight | Phase::kBackward);
    b.join(kWeights, first_gather_);
    if (sequence_) b.drop(kWeights, ends.x);  // the gathered rows take its place
    b.linear_backward_weight(linears_.first);
    if (!sequence_) b.drop(kWeights, ends.x);
    b.drop(kWeights, whole_x_), b.drop(kWeights, copy_x_);
    b.drop(kWeights, inside_->projected);
  }

  void finish_input(LayerBuilder& b, const BranchEnds&, PhaseSet phases) const override {
    b.join(phases, first_backward_);
    b.drop(phases, whole_dx_), b.drop(phases, copy_dx_);
  }

 private:
  // With sequence parallelism all rows of x, for the weight gradient.
  void gather_input(LayerBuilder& b, PhaseSet phases) const {
    b.take(phases, whole_x_), b.take(phases, copy_x_);
    b.start(phases, first_gather_);
  }

  const BranchLinears linears_;
  const std::unique_ptr<BranchDescription> inside_;
  const bool sequence_;
  int dinner_ = kNoValue;  // the gradient of what the last linear takes
  // With sequence parallelism.
  int whole_x_ = kNoValue, copy_x_ = kNoValue, whole_y_ = kNoValue, whole_dy_ = kNoValue, whole_dx_ = kNoValue, copy_dx_ = kNoValue;
  // Calls, in the order of LayerDescription::calls.
  static constexpr int kNone = LayerBuilder::kNoCall;
  int first_forward_ = kNone, last_forward_ = kNone, last_backward_ = kNone, first_gather_ = kNone, first_backward_ = kNone;
};

}  // namespace

std::unique_ptr<LinearPair> new_linear_branch(LayerBuilder& b, const Branch& branch, const BranchLinears& linears,
                                              std::unique_ptr<BranchDescription> inside) {
  return std::make_unique<LinearBranch>(b, branch, linears, std::move(inside));
}

}  // namespace lockstep::arch
