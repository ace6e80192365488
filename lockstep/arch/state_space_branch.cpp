// A branch of a state space, in the order in which nn/state_space and parallel/ allocate, call and release.
#include "lockstep/arch/state_space_branch.h"

#include <string_view>

#include "lockstep/arch/state_space_scratch.h"

namespace lockstep::arch {
namespace {

constexpr int64_t kFp32 = 4;  // bytes
constexpr PhaseSet kSaves = Phase::kForward | Phase::kRecompute;
constexpr PhaseSet kLoseAgain = Phase::kEvaluate | Phase::kRestore;  // of what is kept, and made once more on the way to something else

class StateSpaceBranch : public WholeBranch {
 public:
  StateSpaceBranch(LayerBuilder& b, const Branch& branch)
      : s_(b.s), part_(s_.model.state_space, s_.input.tensor.size, s_.input.tensor.rank), ranks_(s_.input.context.ranks),
        scan_(s_, part_, ranks_ > 1 && s_.input.context.split == config::ContextSplit::kZigzag ? 2 : 1) {
    make_kept(b);
    make_values(b);
    if (ranks_ > 1) make_values_of_pieces(b);
    make_calls(b, branch);
  }

  bool keeps_dy() const override { return !s_.sequence; }

  void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    b.take(kForwards, whole_x_), b.take(kForwards, copy_x_);
    b.communicate(kForwards, in_forward_, 0);
    b.take(kForwards, projected_);
    b.linear(kForwards, in());
    b.drop(kForwards, whole_x_), b.drop(kForwards, copy_x_);
    b.take(kForwards, begins_);
    take_gathered(b, kForwards, own_columns_, all_columns_, columns_forward_);
    steps_and_convolution(b);
    scan_forward(b);
    for (const int value : {convolved_, delta_}) b.drop(kLose, value);
    b.drop(kForwards, a_);
    gate(b);
    b.drop(kLose, scanned_), b.drop(kForwards, begins_);
    b.drop(kLose, projected_);
    b.take(outputs, s_.sequence ? whole_y_ : ends.y);
    b.linear(outputs, out());
    if (s_.sequence) b.take(outputs, ends.y);
    b.communicate(outputs, out_forward_, b.copy_to_scatter());
    b.drop(outputs, whole_y_);
    b.drop(kLose, gated_);
  }

  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    b.take(kInputs, begins_);
    b.take(kInputs, whole_dy_);
    b.communicate(kInputs, out_backward_, b.copy_to_gather());
    b.take(kInputs, dgated_);
    b.linear_backward_input(out());
    for (const int value : {dprojected_, small_, ddelta_, a_, sums_}) b.take(kInputs, value);
    b.communicate(kInputs, norm_backward_, 0);
    b.kernel(kInputs, b.bytes(sums_));
    b.take(kInputs, dscanned_);
    b.kernel(kInputs, 0, 2 * (b.bytes(scanned_) + b.bytes(gated_)) + b.bytes(dscanned_));
    b.drop(kInputs, sums_);
    pieces_backward(b);
    b.kernel(kInputs, scan_.backward(), 2 * (b.bytes(convolved_) + b.bytes(dscanned_)));
    products_backward(b);
    for (const int value : {before_, convolved_, delta_, dscanned_, dlast_, a_}) b.drop(kInputs, value);
    b.kernel(kInputs, 0, 2 * b.bytes(ddelta_));
    b.drop(kInputs, ddelta_);
    convolution_backward(b);
    b.drop(kInputs, begins_);
    gather_input(b, Phase::kOverlapped);
    b.take(kInputs, s_.sequence ? whole_dx_ : ends.dx);
    b.linear_backward_input(in());
    if (s_.sequence) b.take(kInputs, ends.dx), b.take(kInputs, copy_dx_);
    b.start(kInputs, in_backward_);
    if (s_.sequence) b.drop(kInputs, ends.dy);  // W takes the gathered one
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    b.linear_backward_weight(out());
    b.drop(kWeights, gated_);
    b.drop(kWeights, s_.sequence ? whole_dy_ : ends.dy);
    b.drop(ends.lose_dsum, ends.dsum);
    b.kernel(kWeights, part_.norm_groups > 0 ? row_sum_scratch(s_.tokens, part_.inner()) : 0);
    for (const int value : {scanned_, statistics_, dgated_, projected_}) b.drop(kWeights, value);
    b.kernel(kWeights, 0);
    b.drop(kWeights, small_);
    gather_input(b, Phase::kWeight | Phase::kBackward);
    b.join(kWeights, in_gather_);
    if (s_.sequence) b.drop(kWeights, ends.x);  // the gathered rows take its place
    b.linear_backward_weight(in());
    if (!s_.sequence) b.drop(kWeights, ends.x);
    b.drop(kWeights, whole_x_), b.drop(kWeights, copy_x_);
    b.drop(kWeights, dprojected_);
  }

  void finish_input(LayerBuilder& b, const BranchEnds&, PhaseSet phases) const override {
    b.join(phases, in_backward_);
    b.drop(phases, whole_dx_), b.drop(phases, copy_dx_);
  }

 private:
  int64_t columns() const { return part_.sizes.convolution - 1; }  // before a piece
  int64_t numbers_of_columns() const { return s_.input.batch * scan_.pieces * columns() * part_.convolved(); }
  int64_t heads_of_pieces() const { return s_.input.batch * scan_.pieces * part_.heads; }
  LayerBuilder::Linear in() const {
    return {.name = "in", .in = s_.model.hidden, .out = part_.projected(), .has_bias = part_.sizes.projection_bias};
  }
  LayerBuilder::Linear out() const {
    return {.name = "out", .in = part_.inner(), .out = s_.model.hidden, .has_bias = part_.sizes.projection_bias};
  }

  void make_kept(LayerBuilder& b) {
    projected_ = b.activations(part_.projected(), {"z, x, B, C, dt", Recompute::kSelective});
    convolved_ = b.activations(part_.convolved(), {"x, B, C behind the convolution", Recompute::kNone});
    delta_ = b.value(kFp32 * s_.tokens * part_.heads, {"step sizes", Recompute::kNone});
    before_ = b.value(scan_.state() * scan_.chunks, {"states before chunks", Recompute::kSelective});
    if (ranks_ > 1) {
      columns_ = b.value(numbers_of_columns() * s_.input.element_size, {"columns before pieces", Recompute::kSelective});
      decays_ = b.value(kFp32 * ranks_ * heads_of_pieces(), {"decays of pieces", Recompute::kSelective});
    }
    scanned_ = b.activations(part_.inner(), {"scan output", Recompute::kSelective});
    statistics_ = b.value(kFp32 * s_.tokens * part_.norm_groups, {"norm statistics", Recompute::kSelective});
    gated_ = b.activations(part_.inner(), {"gated norm output", Recompute::kNone});
  }

  void make_values(LayerBuilder& b) {
    begins_ = b.value(s_.input.places ? s_.tokens : 0);
    a_ = b.value(kFp32 * part_.heads);
    after_ = b.value(scan_.state()), decay_ = b.value(kFp32 * heads_of_pieces());
    dgated_ = b.activations(part_.inner()), dscanned_ = b.activations(part_.inner()), dprojected_ = b.activations(part_.projected());
    const int64_t of_convolution = part_.convolved() * (part_.sizes.convolution + (part_.sizes.convolution_bias ? 1 : 0));
    small_ = b.value(kFp32 * (of_convolution + 3 * part_.heads));
    ddelta_ = b.value(kFp32 * s_.tokens * part_.heads);
    sums_ = b.value(b.bytes(statistics_));
    whole_x_ = b.whole(), whole_y_ = b.whole(), whole_dy_ = b.whole(), whole_dx_ = b.whole();
    if (s_.uneven) copy_x_ = b.hidden(), copy_dx_ = b.whole();
  }

  void make_values_of_pieces(LayerBuilder& b) {
    own_columns_ = b.value(numbers_of_columns() * s_.input.element_size), all_columns_ = b.value(ranks_ * b.bytes(own_columns_));
    own_states_ = b.value(scan_.state() + kFp32 * heads_of_pieces()), all_states_ = b.value(ranks_ * b.bytes(own_states_));
    first_ = b.value(scan_.state()), state_ = b.value(scan_.state() / scan_.pieces);
    dfirst_ = b.value(scan_.state()), all_dfirst_ = b.value(ranks_ * scan_.state()), dlast_ = b.value(scan_.state());
    dcolumns_ = b.value(kFp32 * numbers_of_columns()), all_dcolumns_ = b.value(ranks_ * b.bytes(dcolumns_));
    if (s_.input.batch > 1 && scan_.pieces > 1)  // in the order in which they are sent
      sent_dfirst_ = b.value(scan_.state()), sent_dcolumns_ = b.value(b.bytes(dcolumns_));
  }

  void make_calls(LayerBuilder& b, const Branch& branch) {
    const auto gathered = [&](const char* part, CallPhase phase, int64_t own, int64_t element_size) {
      return b.call({.part = branch.part(part), .phase = phase, .collective = Collective::kAllGather, .numel = ranks_ * own,
                     .element_size = element_size, .over = CallGroup::kContext, .direct = true});
    };
    const auto summed = [&](CallPhase phase) {
      if (!part_.norm_is_cut) return LayerBuilder::kNoCall;
      return b.call({.part = branch.part("norm"), .phase = phase, .collective = Collective::kAllReduce, .numel = s_.tokens,
                     .element_size = kFp32});
    };
    const int64_t of_states = scan_.state() / kFp32;
    in_forward_ = b.gather_rows(branch.part("in"), CallPhase::kForward);
    columns_forward_ = gathered("columns", CallPhase::kForward, numbers_of_columns(), s_.input.element_size);
    states_forward_ = gathered("states", CallPhase::kForward, of_states + heads_of_pieces(), kFp32);
    norm_forward_ = summed(CallPhase::kForward);
    out_forward_ = b.reduce_output(branch.part("out"), CallPhase::kForward);
    out_backward_ = b.gather_rows(branch.part("out"), CallPhase::kBackward);
    norm_backward_ = summed(CallPhase::kBackward);
    states_backward_ = gathered("states", CallPhase::kBackward, of_states, kFp32);
    columns_backward_ = gathered("columns", CallPhase::kBackward, numbers_of_columns(), kFp32);
    in_gather_ = b.gather_rows(branch.part("in"), CallPhase::kGather);
    in_backward_ = b.reduce_output(branch.part("in"), CallPhase::kBackward);
  }

  // From here on `own` and what comes of all ranks are alive.
  void take_gathered(LayerBuilder& b, PhaseSet phases, int own, int all, int call) const {
    b.take(phases, own), b.take(phases, all);
    b.start(phases, call);
  }

  void steps_and_convolution(LayerBuilder& b) const {
    b.take(kAgain, delta_);
    b.kernel(kAgain, 0, 2 * b.bytes(delta_));
    b.join(kForwards, columns_forward_);
    b.drop(kForwards, own_columns_), b.take(kForwards, columns_), b.drop(kForwards, all_columns_);
    b.take(Phase::kRestore, begins_);
    b.take(kAgain, convolved_);
    b.kernel(kAgain, scan_.convolution(), 2 * b.bytes(convolved_));
    b.drop(Phase::kRestore, begins_);
    b.drop(kLose, columns_);
  }

  void scan_forward(LayerBuilder& b) const {
    const int64_t traffic = b.bytes(convolved_) + b.bytes(scanned_);
    b.take(kForwards, a_);
    const PhaseSet states = ranks_ == 1 ? kSaves : kForwards;
    b.take(kForwards, scanned_);
    for (const int value : {before_, after_, decay_}) b.take(states, value);
    b.kernel(kForwards, scan_.forward(), traffic);
    products_forward(b);
    if (ranks_ == 1) return b.drop(kSaves, after_), b.drop(kSaves, decay_);
    take_gathered(b, kForwards, own_states_, all_states_, states_forward_);
    b.drop(kForwards, after_), b.drop(kForwards, decay_);
    b.join(kForwards, states_forward_);
    b.drop(kForwards, own_states_), b.take(kForwards, first_), b.take(kForwards, state_);
    b.drop(kForwards, state_), b.take(kForwards, decays_), b.drop(kForwards, all_states_);
    b.drop(kLose, decays_);
    b.kernel(kForwards, scan_.first(), 2 * (b.bytes(before_) + b.bytes(scanned_)));
    product_of_states(b, kForwards, "scan.first");  // where decays are so weak that all tokens see it
    b.drop(kForwards, first_);
    b.drop(kLose, before_);
  }

  void gate(LayerBuilder& b) const {
    b.take(kAgain, sums_);
    b.communicate(kAgain, norm_forward_, 0);
    b.take(kAgain, statistics_);
    b.kernel(kAgain, 2 * b.bytes(sums_));
    b.drop(kAgain, sums_), b.take(kAgain, gated_);
    b.kernel(kAgain, 0, b.bytes(scanned_) + 2 * b.bytes(gated_));
    b.drop(kLoseAgain, statistics_);
  }

  void pieces_backward(LayerBuilder& b) const {
    if (ranks_ == 1) return;
    b.take(kInputs, dfirst_);
    b.kernel(kInputs, scan_.backward_first(), b.bytes(convolved_) + b.bytes(dscanned_));
    product_of_states(b, kInputs, "scan.dfirst");
    take_gathered(b, kInputs, sent_dfirst_, all_dfirst_, states_backward_);
    if (sent_dfirst_ != kNoValue) b.drop(kInputs, dfirst_);
    b.join(kInputs, states_backward_);
    b.drop(kInputs, sent_dfirst_ != kNoValue ? sent_dfirst_ : dfirst_);
    b.take(kInputs, dlast_), b.take(kInputs, state_);
    b.drop(kInputs, state_), b.drop(kInputs, all_dfirst_), b.drop(kInputs, decays_);
  }

  void convolution_backward(LayerBuilder& b) const {
    const int64_t traffic = 2 * b.bytes(convolved_);
    b.kernel(kInputs, scan_.convolution() + scan_.convolution_weight(), traffic);
    b.take(kInputs, dcolumns_);
    b.kernel(kInputs, scan_.convolution(), traffic + b.bytes(convolved_));
    if (ranks_ == 1) return;
    take_gathered(b, kInputs, sent_dcolumns_, all_dcolumns_, columns_backward_);
    if (sent_dcolumns_ != kNoValue) b.drop(kInputs, dcolumns_);
    b.join(kInputs, columns_backward_);
    b.drop(kInputs, sent_dcolumns_ != kNoValue ? sent_dcolumns_ : dcolumns_);
    b.drop(kInputs, all_dcolumns_), b.drop(kInputs, columns_);
  }

  // With sequence parallelism all rows of x, for the weight gradient.
  void gather_input(LayerBuilder& b, PhaseSet phases) const {
    b.take(phases, whole_x_), b.take(phases, copy_x_);
    b.start(phases, in_gather_);
  }

  // A block of tokens sees itself by a triangle of scores; blocks see what lies before them by their states.
  void product_of_scores(LayerBuilder& b, PhaseSet phases, std::string_view name, int64_t width, int64_t count) const {
    const int64_t seen = (std::min(part_.sizes.chunk, ScanShape::kBlock) + 1) / 2;
    b.product(phases, {.name = name, .m = s_.tokens, .n = seen, .k = width, .count = count});
  }
  void product_of_groups(LayerBuilder& b, PhaseSet phases, std::string_view name) const {
    product_of_scores(b, phases, name, part_.sizes.state, part_.read_groups * scan_.parts_of_group);
  }
  void product_of_heads(LayerBuilder& b, PhaseSet phases, std::string_view name) const {
    product_of_scores(b, phases, name, part_.sizes.head_size, part_.heads);
  }
  void product_of_states(LayerBuilder& b, PhaseSet phases, std::string_view name) const {
    b.product(phases, {.name = name, .m = s_.tokens, .n = part_.sizes.state, .k = part_.sizes.head_size, .count = part_.heads});
  }
  void products_forward(LayerBuilder& b) const {
    product_of_groups(b, kForwards, "scan.scores");
    product_of_heads(b, kForwards, "scan.mix");
    for (const char* name : {"scan.states", "scan.outputs"}) product_of_states(b, kForwards, name);
  }
  void products_backward(LayerBuilder& b) const {
    for (const char* name : {"scan.again", "scan.dB", "scan.dC"}) product_of_groups(b, kInputs, name);
    for (const char* name : {"scan.dscores", "scan.dx"}) product_of_heads(b, kInputs, name);
    for (const char* name : {"scan.states.again", "scan.states.dx", "scan.states.dB", "scan.outputs.dC", "scan.outputs.dstates"})
      product_of_states(b, kInputs, name);
  }

  const Sizes& s_;
  const StateSpacePart part_;
  const int64_t ranks_;  // of cp
  const ScanShape scan_;
  // Kept.
  int projected_ = kNoValue, convolved_ = kNoValue, delta_ = kNoValue, before_ = kNoValue, columns_ = kNoValue, decays_ = kNoValue;
  int scanned_ = kNoValue, statistics_ = kNoValue, gated_ = kNoValue;
  // Of one pass, or from I to W.
  int begins_ = kNoValue, a_ = kNoValue, after_ = kNoValue, decay_ = kNoValue, sums_ = kNoValue;
  int dgated_ = kNoValue, dscanned_ = kNoValue, dprojected_ = kNoValue, small_ = kNoValue, ddelta_ = kNoValue;
  int own_columns_ = kNoValue, all_columns_ = kNoValue, own_states_ = kNoValue, all_states_ = kNoValue, first_ = kNoValue, state_ = kNoValue;
  int dfirst_ = kNoValue, sent_dfirst_ = kNoValue, all_dfirst_ = kNoValue, dlast_ = kNoValue;
  int dcolumns_ = kNoValue, sent_dcolumns_ = kNoValue, all_dcolumns_ = kNoValue;
  // With sequence parallelism.
  int whole_x_ = kNoValue, copy_x_ = kNoValue, whole_y_ = kNoValue, whole_dy_ = kNoValue, whole_dx_ = kNoValue, copy_dx_ = kNoValue;
  static constexpr int kNone = LayerBuilder::kNoCall;
  int in_forward_ = kNone, in_gather_ = kNone, in_backward_ = kNone, out_forward_ = kNone, out_backward_ = kNone;
  int norm_forward_ = kNone, norm_backward_ = kNone;
  int columns_forward_ = kNone, columns_backward_ = kNone, states_forward_ = kNone, states_backward_ = kNone;
};

}  // namespace

StateSpacePart::StateSpacePart(const StateSpaceSizes& of, int size, int rank) : sizes(of) {
  const bool shared = of.groups % size != 0;  // then size is a multiple of the groups
  heads = of.heads / size;
  groups = shared ? of.groups : of.groups / size;
  read_groups = shared ? 1 : groups;
  first_group = shared ? rank * of.groups / size : 0;
  norm_is_cut = of.norm_groups > 0 && of.norm_groups % size != 0;
  norm_groups = norm_is_cut ? 1 : of.norm_groups / size;
}

std::unique_ptr<WholeBranch> new_state_space_branch(LayerBuilder& b, const Branch& branch) {
  return std::make_unique<StateSpaceBranch>(b, branch);
}

}  // namespace lockstep::arch
