// A branch of experts, in the order in which nn/experts and parallel/expert allocate and release.
#include "lockstep/arch/expert_branch.h"

#include <algorithm>
#include <utility>

namespace lockstep::arch {
namespace {

constexpr PhaseSet kTrains = Phase::kForward | Phase::kRecompute;
constexpr PhaseSet kInTurn = Phase::kInput | Phase::kBackward;  // I waits for what W does not run beside

BranchLinears shared_linears(int64_t hidden, int64_t ffn) {
  return {.first = {.name = kSharedFirst, .in = hidden, .out = 2 * ffn}, .pieces = {}, .last = {.name = kSharedLast, .in = ffn, .out = hidden}};
}

class SharedExpert : public BranchDescription {
 public:
  SharedExpert(LayerBuilder& b, const BranchLinears& linears) {
    projected = b.activations(linears.first.out, {"shared expert gate and up", Recompute::kSelective});
    inner = b.activations(linears.last.in, {"shared expert activation", Recompute::kNone});
  }
  void forward(LayerBuilder& b) const override {
    b.take(kAgain, inner);
    b.kernel(kAgain, 0, b.bytes(projected) + b.bytes(inner));
  }
};

class ExpertsBranch : public WholeBranch {
 public:
  ExpertsBranch(LayerBuilder& b, const Branch& branch)
      : s_(b.s), rows_(s_.model, s_.input), shard_(s_.input.tensor.experts), hidden_(s_.model.hidden), experts_(s_.model.experts.count),
        ffn_(mesh::shard_range(s_.model.experts.ffn, shard_.etp, shard_.etp_rank).size()), alone_(shard_.ep * shard_.etp == 1),
        gathers_(s_.input.tensor.size > 1 && !s_.sequence) {
    make_values(b);
    make_calls(b, branch);
    if (s_.model.experts.shared == 0) return;
    const TensorShard& tensor = s_.input.tensor;
    const int64_t ffn = s_.model.experts.shared * s_.model.experts.ffn;
    const BranchLinears linears = shared_linears(hidden_, mesh::shard_range(ffn, tensor.size, tensor.rank).size());
    shared_y_ = b.hidden(), shared_dx_ = b.hidden();
    shared_ = new_linear_branch(b, branch, linears, std::make_unique<SharedExpert>(b, linears));
  }

  bool keeps_dy() const override { return shared_ && shared_->keeps_dy(); }

  void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    route(b);
    const int sorted = alone_ ? received_ : sent_;
    b.take(kForwards, sorted);
    b.kernel(kForwards, 0, 2 * bytes(rows_.balanced, hidden_));
    if (!alone_) b.take(kForwards, received_);
    b.start(kForwards, dispatch_.forward);
    if (shared_) shared_->forward(b, {.y = shared_y_}, outputs);
    b.join(kForwards, dispatch_.forward);
    if (!alone_) b.kernel(kForwards, by_expert()), b.drop(kForwards, sent_);
    multiply(b);
    give_back(b, ends, outputs);
  }

  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    const int dsorted = alone_ ? dhere_ : dsent_;
    b.take(kInputs, dsorted), b.take(kInputs, dweights_);
    b.kernel(kInputs, 0);
    b.drop(kInputs, outputs_);
    if (!alone_) b.take(kInputs, dhere_);
    b.start(kInputs, dispatch_.backward);
    if (shared_) {
      shared_->backward_input(b, shared_ends(ends));
      shared_->finish_input(b, shared_ends(ends), kInTurn);
    }
    b.take(kInputs, of_router_);
    product(b, kInputs, kRouter, Product::Role::kInputGradient,
            fp32_copy(experts_ * hidden_) + product_scratch(in_fp32(), rows_.own, experts_, hidden_));
    b.join(kInputs, dispatch_.backward);
    if (!alone_) b.kernel(kInputs, by_expert()), b.drop(kInputs, dsent_);
    b.take(kInputs, dinner_);
    product(b, kInputs, kDown, Product::Role::kInputGradient, grouped_scratch(hidden_, ffn_));
    b.kernel(kInputs, 0);  // of the nonlinearity: the gradient of gate and up takes their place
    b.take(kInputs, dx_here_);
    product(b, kInputs, kGateUp, Product::Role::kInputGradient, grouped_scratch(2 * ffn_, hidden_));
    b.drop(kInputs, dinner_);
    b.take(kInputs, dback_);
    b.start(kInputs, combine_.backward, combine_scratch());
    b.drop(kInputs, dweights_);
  }

  void finish_input(LayerBuilder& b, const BranchEnds& ends, PhaseSet phases) const override {
    b.join(phases, combine_.backward);
    if (!alone_) b.drop(phases, dx_here_);
    give_rows(b, phases, own_dx_, ends.dx, rows_call_.backward, alone_ ? dx_here_ : dback_);
    if (shared_) {
      shared_->finish_input(b, shared_ends(ends), Phase::kOverlapped);
      b.drop(phases, shared_dx_);
    }
    b.drop(phases, of_router_);
    if (!keeps_dy()) b.drop(phases, ends.dy);
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    if (shared_) shared_->backward_weight(b, shared_ends(ends));
    product(b, kWeights, kDown, Product::Role::kWeightGradient, grouped_weight_scratch(hidden_, ffn_));
    product(b, kWeights, kGateUp, Product::Role::kWeightGradient, grouped_weight_scratch(2 * ffn_, hidden_));
    product(b, kWeights, kRouter, Product::Role::kWeightGradient, fp32_copy(rows_.own * hidden_));
    if (s_.model.experts.router_bias) b.kernel(kWeights, 4 * experts_);
    for (const int value : {dhere_, inner_, h_, received_, slopes_, logits_, ends.x}) b.drop(kWeights, value);
  }

 private:
  struct Calls {
    int forward = LayerBuilder::kNoCall, backward = LayerBuilder::kNoCall;
  };
  enum Of { kRouter, kGateUp, kDown };

  int64_t bytes(int64_t rows, int64_t width) const { return rows * width * s_.input.element_size; }

  void make_values(LayerBuilder& b) {
    const config::MoeSection& moe = s_.input.moe;
    const auto kept = [](std::string_view as) { return Kept{as, Recompute::kSelective}; };
    const bool aux = moe.balance == config::Balance::kAux && s_.model.experts.router != config::Router::kExpertChoice;
    logits_ = b.value(4 * rows_.own * experts_, kept("router logits"));
    slopes_ = b.value(4 * s_.input.batch * ((aux ? experts_ : 0) + (moe.z_coefficient > 0 ? 1 : 0)), kept("router logits"));
    const int64_t here = bytes(rows_.received, hidden_), back = bytes(rows_.sent, hidden_), own = bytes(rows_.own, hidden_);
    received_ = b.value(here, kept("expert inputs"));
    h_ = b.value(bytes(rows_.received, 2 * ffn_), kept("expert gate and up"));
    inner_ = b.value(bytes(rows_.received, ffn_), kept("expert activation"));
    outputs_ = b.value(back, kept("expert outputs"));
    dhere_ = b.value(here), dx_here_ = b.value(here), dinner_ = b.value(bytes(rows_.received, ffn_));
    dweights_ = b.value(4 * rows_.sent), of_router_ = b.value(4 * rows_.own * hidden_);
    if (!alone_) {  // every rank of etp gets a copy of what is sent
      const int64_t sent = shard_.etp > 1 ? back * (1 + shard_.etp) : back;
      sent_ = b.value(sent), dsent_ = b.value(sent), made_here_ = b.value(here), dback_ = b.value(back);
    }
    if (gathers_) own_y_ = b.value(own), own_dx_ = b.value(own);
  }

  void make_calls(LayerBuilder& b, const Branch& branch) {
    const int64_t ranks = int64_t{shard_.ep} * shard_.etp, of_tp = s_.input.tensor.size;
    const auto gather = [&](const char* part, CallPhase phase, CallGroup over, int64_t numel, int64_t element_size) {
      return b.call({.part = branch.part(part), .phase = phase, .collective = Collective::kAllGather, .numel = numel,
                     .element_size = element_size, .over = over});
    };
    const auto exchange = [&](const char* part, CallPhase phase) {
      return b.call({.part = branch.part(part), .phase = phase, .collective = Collective::kAllToAll,
                     .numel = rounded_up(rows_.balanced, ranks) * hidden_, .element_size = s_.input.element_size,
                     .over = CallGroup::kExperts, .at_run_time = true});
    };
    if (routes_by_sequence(s_.model.experts, s_.input.moe))
      scores_ = gather("scores", CallPhase::kForward, CallGroup::kTensor, rows_.own * of_tp * experts_, 4);
    counts_ = gather("counts", CallPhase::kForward, CallGroup::kExperts, ranks * experts_, 8);
    for (const auto& [calls, part] : {std::pair(&dispatch_, "dispatch"), std::pair(&combine_, "combine")}) {
      calls->forward = exchange(part, CallPhase::kForward);
      calls->backward = exchange(part, CallPhase::kBackward);
    }
    if (!gathers_) return;
    const auto rows = [&](CallPhase phase) {
      return gather("rows", phase, CallGroup::kTensor, rows_.own * of_tp * hidden_, s_.input.element_size);
    };
    rows_call_.forward = rows(CallPhase::kForward);
    rows_call_.backward = rows(CallPhase::kBackward);
  }

  // Logits, and who goes where.
  void route(LayerBuilder& b) const {
    using config::Router;
    const Router router = s_.model.experts.router;
    const bool all = scores_ != LayerBuilder::kNoCall;
    const int64_t scored = 4 * experts_ * (all ? rows_.own * s_.input.tensor.size : rows_.own);
    b.take(kForwards, logits_);
    product(b, kForwards, kRouter, Product::Role::kOutput,
            fp32_copy(rows_.own * hidden_ + experts_ * hidden_) + product_scratch(in_fp32(), rows_.own, hidden_));
    b.communicate(kForwards, scores_, scored);
    // Scores are a copy of logits, and so are the probabilities of a loss.
    const int64_t scores = router == Router::kSoftmaxAfterTopk ? 0 : scored;
    const int64_t probabilities = router == Router::kSoftmaxAfterTopk || router == Router::kSigmoid ? scored : 0;
    b.kernel(kForwards, (all ? scored : 0) + scores, 2 * scored);
    if (slopes_ != kNoValue) b.kernel(kTrains, (all ? scored : 0) + scores + probabilities);
    b.take(kTrains, slopes_);
    b.drop(kLose, logits_);
    b.communicate(kForwards, counts_, 8 * experts_ * (shard_.ep * shard_.etp + 1));
  }

  // From the rows that came to the outputs, back at the source.
  void multiply(LayerBuilder& b) const {
    b.take(kForwards, h_);
    product(b, kForwards, kGateUp, Product::Role::kOutput, grouped_scratch(hidden_));
    b.take(kForwards, inner_);
    b.kernel(kForwards, 0, bytes(rows_.balanced, 3 * ffn_));
    b.drop(kLose, h_);
    b.take(kForwards, alone_ ? outputs_ : made_here_);
    product(b, kForwards, kDown, Product::Role::kOutput, grouped_scratch(ffn_));
    b.drop(kLose, inner_), b.drop(kLose, received_);
    if (alone_) return;
    b.take(kForwards, outputs_);
    b.communicate(kForwards, combine_.forward, combine_scratch());
    b.drop(kForwards, made_here_);
  }

  // Weighted sums of the outputs, as the block has its rows.
  void give_back(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const {
    b.kernel(outputs, 0, bytes(rows_.balanced / shard_.etp + rows_.own, hidden_));
    give_rows(b, outputs, own_y_, ends.y, rows_call_.forward, kNoValue);
    if (shared_) {
      b.kernel(outputs, 0, 3 * s_.hidden);
      b.drop(outputs, shared_y_);
    }
    b.drop(kLose, outputs_);
  }

  // Sums of own rows; those of all ranks of tp where each has all rows. `summed` is released.
  void give_rows(LayerBuilder& b, PhaseSet phases, int own, int all, int call, int summed) const {
    b.take(phases, gathers_ ? own : all);
    b.drop(phases, summed);
    if (!gathers_) return;
    const bool uneven = s_.tokens % s_.input.tensor.size != 0;  // they are copied to equal parts
    b.take(phases, all);
    b.communicate(phases, call, uneven ? bytes(rows_.own, hidden_) * (1 + s_.input.tensor.size) : 0);
    b.drop(phases, own);
  }

  // Without sequence parallelism it keeps dy, and releases it.
  BranchEnds shared_ends(const BranchEnds& ends) const {
    const bool keeps = keeps_dy();
    return {.y = shared_y_, .dy = keeps ? ends.dy : kNoValue, .dx = shared_dx_, .dsum = ends.dsum, .lose_dsum = ends.lose_dsum};
  }

  // [rows, in] times [in, out] and its gradients; of experts as if all had as many rows.
  void product(LayerBuilder& b, PhaseSet phases, Of of, Product::Role role, int64_t scratch) const {
    constexpr std::string_view kNames[] = {"experts.router", "experts.gate_up", "experts.down"};
    const int64_t rows = of == kRouter ? rows_.own : rows_.balanced;
    const int64_t in = of == kDown ? ffn_ : hidden_, out = of == kRouter ? experts_ : of == kGateUp ? 2 * ffn_ : hidden_;
    Product p{.name = kNames[of], .role = role, .m = rows, .n = out, .k = in};
    if (role == Product::Role::kInputGradient) p.n = in, p.k = out;
    if (role == Product::Role::kWeightGradient) p.m = out, p.n = in, p.k = rows;
    b.product(phases, p, scratch);
  }

  // nn/grouped: a tile of a result per thread.
  int64_t grouped_scratch(int64_t terms, int64_t columns = 0) const {
    CostInput one = s_.input;
    one.threads = 1;
    return s_.input.threads * product_scratch(one, std::min(rows_.received, kTile), terms, columns);
  }
  int64_t grouped_weight_scratch(int64_t out, int64_t in) const {
    if (s_.fp32) return 0;
    return s_.input.threads * (std::min(kTile, out) * std::min(kTile, in) * s_.input.element_size + kPackingBytes);
  }
  CostInput in_fp32() const {
    CostInput input = s_.input;
    input.element_size = 4;
    return input;
  }
  int64_t fp32_copy(int64_t elements) const { return s_.fp32 ? 0 : 4 * elements; }
  // parallel/expert: rows come by source and are put in the order of experts, and back; with etp the sums over its ranks are made
  // of what all of them sent.
  int64_t by_expert() const { return experts_ / shard_.ep > 1 ? bytes(rows_.received, hidden_) : 0; }
  int64_t combine_scratch() const {
    return alone_ ? 0 : by_expert() + (shard_.etp > 1 ? bytes(rows_.sent, hidden_) * shard_.etp : 0);
  }

  static constexpr int64_t kTile = 512;  // rows and columns

  const Sizes& s_;
  const ExpertRows rows_;
  const ExpertShard shard_;
  const int64_t hidden_, experts_, ffn_;  // D, E, F here
  const bool alone_;                      // this rank has all experts, whole
  const bool gathers_;                    // it routes a part of the rows that it has
  std::unique_ptr<WholeBranch> shared_{};
  int logits_ = kNoValue, slopes_ = kNoValue, received_ = kNoValue, h_ = kNoValue, inner_ = kNoValue, outputs_ = kNoValue;
  int sent_ = kNoValue, made_here_ = kNoValue, own_y_ = kNoValue, shared_y_ = kNoValue;
  int dsent_ = kNoValue, dhere_ = kNoValue, dweights_ = kNoValue, dinner_ = kNoValue, dx_here_ = kNoValue, dback_ = kNoValue,
      of_router_ = kNoValue, own_dx_ = kNoValue, shared_dx_ = kNoValue;
  int scores_ = LayerBuilder::kNoCall, counts_ = LayerBuilder::kNoCall;
  Calls dispatch_, combine_, rows_call_;
};

}  // namespace

std::unique_ptr<WholeBranch> new_experts_branch(LayerBuilder& b, const Branch& branch) { return std::make_unique<ExpertsBranch>(b, branch); }

}  // namespace lockstep::arch
