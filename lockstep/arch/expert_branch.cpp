// A branch of experts, in the order in which nn/experts and parallel/expert allocate and release.
#include "lockstep/arch/expert_branch.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/expert_calls.h"

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
        by_token_(sends_tokens(s_.input)), gathers_(s_.input.tensor.size > 1 && !s_.sequence),
        calls_(make_expert_calls(b, branch, rows_)) {
    make_values(b);
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
    b.take(outputs, sum_);
    if (by_token_) return forward_by_token(b, ends, outputs);
    const int sorted = alone_ ? received_ : sent_;
    b.take(kForwards, sorted);
    b.kernel(kForwards, 0, 2 * bytes(rows_.balanced, hidden_));
    if (!alone_) b.take(kForwards, received_);
    b.start(kForwards, calls_.dispatch.forward);
    if (shared_) shared_->forward_first(b);
    b.join(kForwards, calls_.dispatch.forward);
    if (!alone_) b.kernel(kForwards, by_expert()), b.drop(kForwards, sent_);
    multiply(b);
    combine(b, kForwards, outputs);
    give_back(b, ends, outputs);
  }

  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    b.take(kInputs, of_rounds_);
    by_token_ ? gradients_by_token(b) : gradients_by_row(b);
    b.take(kInputs, dinner_);
    product(b, kInputs, kDown, Product::Role::kInputGradient, grouped_scratch(hidden_, ffn_));
    b.kernel(kInputs, 0);  // of the nonlinearity: the gradient of gate and up takes their place
    b.take(kInputs, dx_here_);
    product(b, kInputs, kGateUp, Product::Role::kInputGradient, grouped_scratch(2 * ffn_, hidden_));
    b.drop(kInputs, dinner_);
    b.take(kInputs, dback_);
    if (by_token_) b.kernel(kInputs, 0), b.drop(kInputs, dx_here_);
    b.communicate(kInputs, calls_.combine_in_node.backward, hop_scratch());
    b.take(kInputs, arriving_);
    b.start(kInputs, calls_.combine.backward, combine_scratch());
    b.drop(kInputs, dweights_);
    if (!shared_) return;
    shared_->backward_first(b, shared_ends(ends));
    shared_->finish_input(b, shared_ends(ends), kInTurn);
  }

  void finish_input(LayerBuilder& b, const BranchEnds& ends, PhaseSet phases) const override {
    b.join(phases, calls_.combine.backward);
    if (!alone_) b.drop(phases, by_token_ ? dback_ : dx_here_);
    sum_arrived(b, phases);
    // What the router gives is added in fp32.
    if (by_token_) b.kernel(phases, bytes(rows_.own, hidden_) + 4 * rows_.own * hidden_ + (s_.fp32 ? 0 : bytes(rows_.own, hidden_)));
    give_rows(b, phases, own_dx_, ends.dx, calls_.rows.backward, alone_ ? dx_here_ : by_token_ ? kNoValue : dback_);
    if (shared_) {
      shared_->finish_input(b, shared_ends(ends), Phase::kOverlapped);
      b.drop(phases, shared_dx_);
    }
    b.drop(phases, of_router_);
    if (!keeps_dy()) b.drop(phases, ends.dy);
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    if (shared_) shared_->backward_weight(b, shared_ends(ends));
    if (rows_.limit > 0) b.kernel(Phase::kWeight, bytes_of_a_round(b));
    product(b, kWeights, kDown, Product::Role::kWeightGradient, grouped_weight_scratch(hidden_, ffn_));
    product(b, kWeights, kGateUp, Product::Role::kWeightGradient, grouped_weight_scratch(2 * ffn_, hidden_));
    if (s_.model.experts.biases) b.kernel(kWeights, 0, bytes(rows_.balanced, hidden_ / shard_.etp + 2 * ffn_));  // sums over rows, in registers
    product(b, kWeights, kRouter, Product::Role::kWeightGradient, fp32_copy(rows_.own * hidden_));
    if (s_.model.experts.logit_bias) b.kernel(kWeights, row_sum_scratch(rows_.own, experts_));
    if (s_.model.experts.router_bias && s_.input.moe.balance == config::Balance::kBias) b.kernel(kWeights, 4 * experts_);
    for (const int value : {dhere_, inner_, h_, received_, slopes_, logits_, of_rounds_, ends.x}) b.drop(kWeights, value);
  }

 private:
  enum Of { kRouter, kGateUp, kDown };

  int64_t bytes(int64_t rows, int64_t width) const { return rows * width * s_.input.element_size; }

  void make_values(LayerBuilder& b) {
    const config::MoeSection& moe = s_.input.moe;
    const auto kept = [](std::string_view as) { return Kept{as, Recompute::kSelective}; };
    const bool aux = moe.balance == config::Balance::kAux && s_.model.experts.router != config::Router::kExpertChoice;
    logits_ = b.value(4 * rows_.own * experts_ + placed_bytes(), kept("router logits"));
    slopes_ = b.value(4 * s_.input.batch * ((aux ? experts_ : 0) + (moe.z_coefficient > 0 ? 1 : 0)), kept("router logits"));
    const int64_t here = bytes(rows_.received, hidden_), back = bytes(rows_.sent, hidden_), own = bytes(rows_.own, hidden_);
    received_ = b.value(here, kept("expert inputs"));
    h_ = b.value(bytes(rows_.received, 2 * ffn_), kept("expert gate and up"));
    inner_ = b.value(bytes(rows_.received, ffn_), kept("expert activation"));
    outputs_ = b.value(by_token_ ? here : back, kept("expert outputs"));
    dhere_ = b.value(here), dx_here_ = b.value(here), dinner_ = b.value(bytes(rows_.received, ffn_));
    dweights_ = b.value(4 * rows_.sent), of_router_ = b.value(4 * rows_.own * hidden_);
    if (by_token_) {
      const int64_t tokens = bytes(rows_.tokens, hidden_);
      sent_ = b.value(tokens), dsent_ = b.value(tokens), made_here_ = b.value(tokens), dback_ = b.value(tokens);
    } else if (!alone_) {  // every rank of etp gets a copy of what is sent
      const int64_t sent = rows_.slots > 0 ? back + bytes(rows_.balanced + 1, hidden_) : shard_.etp > 1 ? back * (1 + shard_.etp) : back;
      sent_ = b.value(sent), dsent_ = b.value(sent), made_here_ = b.value(here), dback_ = b.value(back);
    }
    arriving_ = b.value(arriving_bytes());
    if (rows_.limit > 0) sum_ = b.value(4 * rows_.own * hidden_), of_rounds_ = b.value(own + b.bytes(sum_));  // over rounds; and dy for W
    if (gathers_) own_y_ = b.value(own), own_dx_ = b.value(own);
  }

  int64_t ranks() const { return int64_t{shard_.ep} * shard_.etp; }

  // Tokens come, and each is put where its experts here are.
  void forward_by_token(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const {
    b.take(kForwards, sent_), b.take(kForwards, leaving());
    b.start(kForwards, calls_.dispatch.forward);
    if (shared_) shared_->forward_first(b);
    b.join(kForwards, calls_.dispatch.forward);
    b.drop(kForwards, leaving());
    b.communicate(kForwards, calls_.dispatch_in_node.forward, hop_scratch());
    b.take(kForwards, received_);
    b.kernel(kForwards, 0, 2 * bytes(rows_.balanced, hidden_));
    b.drop(kForwards, sent_);
    multiply(b);
    b.take(outputs, made_here_);
    b.kernel(outputs, 0, bytes(rows_.balanced, hidden_));
    b.communicate(outputs, calls_.combine_in_node.forward, hop_scratch());
    combine(b, outputs, outputs);
    give_back(b, ends, outputs);
  }

  // To the outputs here, of rows that come one by one ...
  void gradients_by_row(LayerBuilder& b) const {
    const int dsorted = alone_ ? dhere_ : dsent_;
    b.take(kInputs, dsorted), b.take(kInputs, dweights_);
    b.kernel(kInputs, 0);
    b.drop(kInputs, outputs_);
    if (!alone_) b.take(kInputs, dhere_);
    b.start(kInputs, calls_.dispatch.backward);
    if (shared_) shared_->backward_last(b);
    router_backward(b);
    b.join(kInputs, calls_.dispatch.backward);
    if (!alone_) b.kernel(kInputs, by_expert()), b.drop(kInputs, dsent_);
  }
  // ... or of tokens, weighted here: the weights' gradients are known here alone.
  void gradients_by_token(LayerBuilder& b) const {
    b.take(kInputs, dsent_), b.take(kInputs, leaving());
    b.start(kInputs, calls_.dispatch.backward);
    if (shared_) shared_->backward_last(b);
    b.join(kInputs, calls_.dispatch.backward);
    b.drop(kInputs, leaving());
    b.communicate(kInputs, calls_.dispatch_in_node.backward, hop_scratch());
    b.take(kInputs, dhere_), b.take(kInputs, dweights_);
    b.kernel(kInputs, 4 * rows_.received);
    b.drop(kInputs, outputs_), b.drop(kInputs, dsent_);
    b.communicate(kInputs, calls_.weights, 4 * (ranks() + 1) * rows_.sent + (4 + 8) * rows_.received);  // and the place of each
    router_backward(b);
  }
  void router_backward(LayerBuilder& b) const {
    b.take(kInputs, of_router_);
    product(b, kInputs, kRouter, Product::Role::kInputGradient,
            router_copy() + product_scratch(in_fp32(), rows_.own, experts_, hidden_));
  }

  // Logits, and who goes where.
  void route(LayerBuilder& b) const {
    using config::Router;
    const Router router = s_.model.experts.router;
    const bool whole = calls_.whole_scores != LayerBuilder::kNoCall, all = whole || calls_.scores != LayerBuilder::kNoCall;
    const int64_t of_tp = 4 * experts_ * rows_.own * s_.input.tensor.size, tokens = s_.input.batch * s_.input.seq_len;
    const int64_t scored = whole ? 4 * experts_ * tokens : all ? of_tp : 4 * experts_ * rows_.own;
    b.take(kForwards, logits_);
    product(b, kForwards, kRouter, Product::Role::kOutput,
            fp32_copy(rows_.own * hidden_) + router_copy() + bias_copy() + product_scratch(in_fp32(), rows_.own, hidden_));
    b.communicate(kForwards, calls_.scores, of_tp);
    b.communicate(kForwards, calls_.whole_scores, scored + (calls_.scores != LayerBuilder::kNoCall ? of_tp : 0));
    if (whole) b.kernel(kForwards, 2 * scored + 8 * tokens, 2 * scored);  // into the order of sequences, whose places are int64
    // Scores are a copy of logits, and so are the probabilities of a loss.
    const int64_t scores = router == Router::kSoftmaxAfterTopk ? 0 : scored;
    const bool own_alone = s_.input.moe.scope == config::MoeScope::kLastStep;  // whatever was gathered for a capacity
    const int64_t judged = own_alone ? 4 * experts_ * rows_.own : scored;
    const int64_t probabilities = router == Router::kSoftmaxAfterTopk || router == Router::kSigmoid ? judged : 0;
    // Own rows are no stretch of whole sequences: their places, and where they alone are judged a copy of their scores.
    const int64_t known = (all ? scored : 0) + scores + (whole ? 8 * rows_.own : 0), copied = whole && own_alone ? judged : 0;
    b.kernel(kForwards, known + choice_scratch(scored), 2 * scored);
    if (slopes_ != kNoValue) b.kernel(kTrains, known + probabilities + copied);
    b.take(kTrains, slopes_);
    b.drop(kLose, logits_);
    b.communicate(kForwards, calls_.counts, 8 * (experts_ + (by_token_ ? 1 : 0)) * (ranks() + 1));
    b.communicate(kForwards, calls_.tokens, 16 * rows_.sent * (ranks() + 1));
  }

  // With messages of slots the routing stays on a GPU (nn/device_routing.h). Kept are two int64, a weight and a mark of each assignment; the
  // choice has copies of scores, sorted values with int64 indices, places in int64, and what sorting needs.
  int64_t placed_bytes() const { return rows_.slots > 0 ? 21 * rows_.sent : 0; }
  int64_t choice_scratch(int64_t scored) const { return rows_.slots > 0 ? 10 * scored : 0; }

  // From the rows that came to their outputs.
  void multiply(LayerBuilder& b) const {
    b.take(kForwards, h_);
    product(b, kForwards, kGateUp, Product::Role::kOutput, grouped_scratch(hidden_));
    b.take(kForwards, inner_);
    b.kernel(kForwards, 0, bytes(rows_.balanced, 3 * ffn_));
    b.drop(kLose, h_);
    const bool stays = alone_ || by_token_;
    b.take(kForwards, stays ? outputs_ : made_here_);
    product(b, kForwards, kDown, Product::Role::kOutput, grouped_scratch(ffn_));
    b.drop(kLose, inner_), b.drop(kLose, received_);
    if (!stays) b.take(kForwards, outputs_);
  }

  // Back at the source, and meanwhile the shared expert's output.
  void combine(LayerBuilder& b, PhaseSet phases, PhaseSet outputs) const {
    b.take(phases, arriving_);
    b.start(phases, calls_.combine.forward, combine_scratch());
    if (shared_) shared_->forward_last(b, {.y = shared_y_}, outputs);
    b.join(phases, calls_.combine.forward);
    b.drop(phases, made_here_);
    sum_arrived(b, phases);
  }
  // Over etp, a rank's rows at a time in fp32, or over nodes. Of slots a value has the sums but for those of empty ones.
  void sum_arrived(LayerBuilder& b, PhaseSet phases) const {
    if (over_nodes()) b.kernel(phases, bytes(rows_.own, hidden_));
    if (!by_token_ && shard_.etp > 1)
      b.kernel(phases, (rows_.slots > 0 ? bytes(rows_.balanced / shard_.etp, hidden_) : 0) + fp32_copy(most_to_a_rank() * hidden_));
    b.drop(phases, arriving_);
  }
  // Rows that go to one rank of ep at most.
  int64_t most_to_a_rank() const {
    return rows_.slots > 0 ? experts_ / shard_.ep * rows_.slots : std::min(rows_.sent, rows_.own * std::min(chosen(), experts_ / shard_.ep));
  }
  // Experts of a row at most.
  int64_t chosen() const { return s_.model.experts.router == config::Router::kExpertChoice ? experts_ : s_.model.experts.per_token; }

  // Weighted sums of the outputs, as the block has its rows.
  void give_back(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const {
    b.kernel(outputs, 0, bytes(rows_.balanced / shard_.etp + rows_.own, hidden_));
    give_rows(b, outputs, own_y_, ends.y, calls_.rows.forward, sum_);
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
  int64_t router_copy() const { return s_.input.tensor.fp32_group ? 0 : fp32_copy(experts_ * hidden_); }  // there its weight is fp32
  int64_t bias_copy() const { return s_.model.experts.logit_bias && !s_.input.tensor.fp32_group ? fp32_copy(experts_) : 0; }
  // parallel/expert: rows come by source and are put in the order of experts, and back.
  int64_t by_expert() const { return experts_ / shard_.ep > 1 ? bytes(rows_.received, hidden_) : 0; }
  int64_t combine_scratch() const { return alone_ || by_token_ ? 0 : by_expert(); }
  // Until a call is joined, beside its operand and its result: of combine the message of slots, or what all ranks of etp send, of which
  // sums are made; of dispatch and combine over nodes what is sent and what comes. Of all_gather own rows, as many as the rank with
  // most has: sums that come back, and what goes out where ranks have fewer (parallel/expert/group.cpp).
  int64_t arriving_bytes() const {
    if (alone_) return 0;
    if (by_token_) return bytes(over_nodes() ? rows_.own * rows_.nodes_of_token + rows_.to_node : rows_.own, hidden_);
    if (rows_.slots > 0) return bytes(rows_.balanced, hidden_);
    return shard_.etp > 1 ? bytes(rows_.sent, hidden_) * shard_.etp : 0;
  }
  int leaving() const { return over_nodes() || s_.tokens % s_.input.tensor.size != 0 ? arriving_ : kNoValue; }
  // W brings the rows of a round once more, beside what it has of the experts: first there and back, then the gradients.
  int64_t bytes_of_a_round(const LayerBuilder& b) const {
    const int64_t exchanged = b.bytes(outputs_) + b.bytes(sent_) + b.bytes(made_here_) + b.bytes(arriving_) + std::max(combine_scratch(), hop_scratch());
    return std::max(exchanged, b.bytes(dinner_) + b.bytes(dx_here_) + grouped_scratch(2 * ffn_, hidden_));
  }
  bool over_nodes() const { return by_token_ && s_.input.dispatcher == config::Dispatcher::kHierarchical; }
  // What is sent and what comes, over nodes and inside one; an all_gather and its inverse go without.
  int64_t hop_scratch() const {
    if (!over_nodes()) return 0;
    return bytes(rows_.own * rows_.nodes_of_token + rows_.to_node + rows_.to_node * s_.input.node_ranks, hidden_);
  }

  static constexpr int64_t kTile = 512;  // rows and columns

  const Sizes& s_;
  const ExpertRows rows_;
  const ExpertShard shard_;
  const int64_t hidden_, experts_, ffn_;  // D, E, F here
  const bool alone_;                      // this rank has all experts, whole
  const bool by_token_;                   // sends_tokens: sent_ to dback_ are rows of tokens that are here
  const bool gathers_;                    // it routes a part of the rows that it has
  std::unique_ptr<LinearPair> shared_{};
  int logits_ = kNoValue, slopes_ = kNoValue, received_ = kNoValue, h_ = kNoValue, inner_ = kNoValue, outputs_ = kNoValue;
  int sum_ = kNoValue, sent_ = kNoValue, made_here_ = kNoValue, own_y_ = kNoValue, shared_y_ = kNoValue;
  int dsent_ = kNoValue, dhere_ = kNoValue, dweights_ = kNoValue, dinner_ = kNoValue, dx_here_ = kNoValue, dback_ = kNoValue,
      arriving_ = kNoValue, of_rounds_ = kNoValue, of_router_ = kNoValue, own_dx_ = kNoValue, shared_dx_ = kNoValue;
  const ExpertCalls calls_;
};

}  // namespace

std::unique_ptr<WholeBranch> new_experts_branch(LayerBuilder& b, const Branch& branch) { return std::make_unique<ExpertsBranch>(b, branch); }

}  // namespace lockstep::arch
