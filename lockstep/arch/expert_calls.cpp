#include "lockstep/arch/expert_calls.h"

#include <algorithm>
#include <tuple>

namespace lockstep::arch {
namespace {

class CallMaker {
 public:
  CallMaker(LayerBuilder& b, const Branch& branch, const ExpertRows& rows)
      : b_(b), s_(b.s), branch_(branch), rows_(rows), shard_(s_.input.tensor.experts), hidden_(s_.model.hidden),
        ranks_(int64_t{shard_.ep} * shard_.etp), by_token_(sends_tokens(s_.input)),
        over_nodes_(by_token_ && s_.input.dispatcher == config::Dispatcher::kHierarchical) {}

  ExpertCalls make() {
    const int64_t of_tp = s_.input.tensor.size, experts = s_.model.experts.count;
    if (routes_by_sequence(s_.model.experts, s_.input.moe)) {
      calls_.scores = gather("scores", CallPhase::kForward, CallGroup::kTensor, rows_.own * of_tp * experts, 4);
      calls_.whole_scores = b_.call({.part = branch_.part("scores"), .phase = CallPhase::kForward, .collective = Collective::kAllGather,
                                     .numel = s_.input.context.ranks * rows_.here * experts, .element_size = 4,
                                     .over = CallGroup::kContext, .direct = true});
    }
    // A sender of tokens tells how many rows it has too.
    if (rows_.slots == 0) calls_.counts = gather("counts", CallPhase::kForward, CallGroup::kExperts, ranks_ * (experts + (by_token_ ? 1 : 0)), 8);
    if (by_token_) make_token_calls();
    make_exchanges();
    if (of_tp == 1 || s_.sequence) return calls_;
    const auto rows = [&](CallPhase phase) {
      return gather("rows", phase, CallGroup::kTensor, rows_.own * of_tp * hidden_, s_.input.element_size);
    };
    calls_.rows = {.forward = rows(CallPhase::kForward), .backward = rows(CallPhase::kBackward)};
    return calls_;
  }

 private:
  int gather(const char* part, CallPhase phase, CallGroup over, int64_t numel, int64_t element_size) {
    return b_.call({.part = branch_.part(part), .phase = phase, .collective = Collective::kAllGather, .numel = numel,
                    .element_size = element_size, .over = over});
  }

  // As many as the rank with most has.
  void make_token_calls() {
    const int64_t balanced = ranks_ * rows_.balanced / shard_.etp, most = std::max(balanced, ranks_ * rows_.sent);
    calls_.tokens = b_.call({.part = branch_.part("tokens"), .phase = CallPhase::kForward, .collective = Collective::kAllGather,
                             .numel = 2 * balanced, .element_size = 8, .over = CallGroup::kExperts,
                             .at_run_time = true, .most = 2 * most, .direct = true});
    calls_.weights = b_.call({.part = branch_.part("weights"), .phase = CallPhase::kBackward, .collective = Collective::kReduceScatter,
                              .numel = balanced, .element_size = 4, .over = CallGroup::kExperts,
                              .at_run_time = true, .most = most, .in_rounds = rows_.limit > 0, .direct = true});
  }

  int exchange(const char* part, CallPhase phase, Collective collective, CallGroup over, int64_t rows, int64_t most) {
    const bool gathered = by_token_ && !over_nodes_, limited = rows_.limit > 0;
    const bool at_run_time = limited || (!gathered && rows_.slots == 0);
    const int64_t numel = rounded_up(rows, b_.ranks_of(over)) * hidden_;
    return b_.call({.part = branch_.part(part), .phase = phase, .collective = collective, .numel = numel,
                    .element_size = s_.input.element_size, .over = over, .at_run_time = at_run_time,
                    .most = at_run_time ? std::max(numel, most * hidden_) : 0, .in_rounds = limited, .direct = true});
  }

  // There and back, forward and backward.
  void make_exchanges() {
    const bool gathered = by_token_ && !over_nodes_;
    const CallGroup over = over_nodes_ ? CallGroup::kExpertNodes : CallGroup::kExperts;
    const int64_t to_nodes = rows_.own * rows_.nodes_of_token;
    const int64_t rows = over_nodes_ ? to_nodes : gathered ? rows_.tokens : rows_.balanced;
    const int64_t leave = over_nodes_ ? to_nodes : gathered ? rows_.tokens : rows_.sent * shard_.etp;
    const int64_t come = over_nodes_ ? rows_.to_node : gathered ? rows_.tokens : rows_.received;
    for (const auto& [calls, part, collective, most] :
         {std::tuple(&calls_.dispatch, "dispatch", gathered ? Collective::kAllGather : Collective::kAllToAll, leave),
          std::tuple(&calls_.combine, "combine", gathered ? Collective::kReduceScatter : Collective::kAllToAll, come)}) {
      calls->forward = exchange(part, CallPhase::kForward, collective, over, rows, most);
      calls->backward = exchange(part, CallPhase::kBackward, collective, over, rows, most);
    }
    if (over_nodes_) make_exchanges_in_node(to_nodes);
  }

  void make_exchanges_in_node(int64_t to_nodes) {
    // Of a token's experts those on one node, if its nodes have as many each; and of each its ranks there.
    const int64_t of_token = s_.model.experts.per_token * rows_.nodes_of_expert;
    const int64_t on_node = rounded_up(of_token, rows_.nodes_of_token) / rows_.nodes_of_token *
                            (rounded_up(shard_.etp, rows_.nodes_of_expert) / rows_.nodes_of_expert);
    const int64_t forwarded = to_nodes * std::min<int64_t>(on_node, s_.input.node_ranks);
    // To every rank of the node at most; and every row of any rank comes here.
    const int64_t within = rows_.to_node * s_.input.node_ranks;
    const auto inside = [&](const char* part, CallPhase phase, int64_t most) {
      return exchange(part, phase, Collective::kAllToAll, CallGroup::kExpertNode, forwarded, most);
    };
    calls_.dispatch_in_node = {.forward = inside("dispatch.node", CallPhase::kForward, within),
                               .backward = inside("dispatch.node", CallPhase::kBackward, within)};
    calls_.combine_in_node = {.forward = inside("combine.node", CallPhase::kForward, rows_.tokens),
                              .backward = inside("combine.node", CallPhase::kBackward, rows_.tokens)};
  }

  LayerBuilder& b_;
  const Sizes& s_;
  const Branch& branch_;
  const ExpertRows& rows_;
  const ExpertShard shard_;
  const int64_t hidden_;  // D
  const int64_t ranks_;   // ep x etp
  const bool by_token_, over_nodes_;
  ExpertCalls calls_{};
};

}  // namespace

ExpertCalls make_expert_calls(LayerBuilder& b, const Branch& branch, const ExpertRows& rows) { return CallMaker(b, branch, rows).make(); }

}  // namespace lockstep::arch
