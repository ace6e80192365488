#include "lockstep/arch/context_attention.h"

#include <algorithm>
#include <string>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {
namespace {

constexpr int64_t kFp32 = 4, kInt32 = 4;  // bytes

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Key/value heads that the query heads of one of `ranks` need, at most: `each` of them, in order.
int64_t most_keys(const AttentionHeads& heads, int64_t ranks, int64_t each) {
  const int64_t of_key = heads.queries / heads.keys;
  int64_t most = 1;
  for (int64_t rank = 0; rank < ranks && rank * each < heads.queries; ++rank) {
    const int64_t first = rank * each, last = std::min(heads.queries, first + each) - 1;
    most = std::max(most, last / of_key - first / of_key + 1);
  }
  return most;
}

// Of [0, length) all pairs of a token and one that it sees, per token.
double pairs_of(double length, double window) {
  if (window <= 0 || window >= length) return length * (length + 1) / 2;
  return window * (window + 1) / 2 + (length - window) * window;
}

// By token of the last `here` of a sequence of `length`.
int64_t keys_of_last(int64_t length, int64_t here, int64_t window) {
  const bool all = here >= length;
  if (all && (window <= 0 || window >= length)) return (length + 1) / 2;
  const auto l = static_cast<double>(length), h = static_cast<double>(all ? length : here), w = static_cast<double>(window);
  return static_cast<int64_t>((pairs_of(l, w) - pairs_of(l - h, w)) / h);
}

}  // namespace

ContextPlan::ContextPlan(const Sizes& s, const AttentionHeads& heads) {
  const ContextShard& shard = s.input.context;
  if (shard.ranks > 1) {
    if (shard.kind == config::ContextKind::kAllToAll) exchanged = shard.ranks;
    if (shard.kind == config::ContextKind::k2d) exchanged = shard.inner;
    if (shard.kind == config::ContextKind::kAllGather) gathered = shard.ranks;
    if (shard.kind == config::ContextKind::kRing || shard.kind == config::ContextKind::k2d) ring = shard.ranks / exchanged;
  }
  queries = divided_up(heads.queries, exchanged);
  keys = exchanged == 1 ? heads.keys : most_keys(heads, exchanged, queries);
  rows = exchanged * s.tokens;
  of_sequence = exchanged * s.length;
  ends = shard.window_ends(ring, of_sequence, s.model.sliding_window);
  hops = ends > 0 ? 0 : shard.ring_hops(ring, of_sequence, s.model.sliding_window);
  if (ends > 0) pieces = shard.pieces();
  const int64_t here = shard.split == config::ContextSplit::kContiguous ? of_sequence : s.input.seq_len;
  keys_seen = keys_of_last(s.input.seq_len, here, s.model.sliding_window);
}

int64_t span_bytes(const Sizes& s) {
  const int64_t window = s.model.sliding_window;
  const bool cut = s.input.places || (window > 0 && window < s.input.seq_len);
  return cut && s.input.context.ranks == 1 ? 2 * kInt32 * s.tokens : 0;
}

ContextAttention::ContextAttention(LayerBuilder& b, const AttentionHeads& heads) : plan(b.s, heads), heads_(heads) {
  const Sizes& s = b.s;
  const int64_t e = s.input.element_size, width = heads.key_width + heads.value_width;
  block_ = sends_latents() ? s.tokens * heads.latent : plan.rows * plan.keys * width;
  if (sends_latents()) repeated_ = plan.rows * plan.queries * width;
  if (exchanges()) {
    const int64_t of_key = heads.queries / heads.keys;
    if (of_key % plan.queries != 0 && plan.queries % of_key != 0) repeated_ = plan.rows * plan.queries * width;
    taken_ = plan.rows * (plan.queries * heads.key_width + plan.keys * width);
    given_ = plan.rows * plan.queries * heads.value_width;
    rows_ = b.value(taken_ * e, {"q, k, v of exchanged heads", Recompute::kSelective});
    out_ = b.value(given_ * e, {"attention output of exchanged heads", Recompute::kSelective});
    logsumexp_ = b.value(kFp32 * plan.rows * plan.queries, {"attention logsumexp", Recompute::kSelective});
    sent_ = b.value(taken_ * e), output_ = b.value(given_ * e);
    dkeys_ = b.value(kFp32 * s.tokens * heads.keys * width);
    shared_ = b.value(plan.rows * (8 + kInt32 * (1 + plan.ring)));  // places of the tokens of all who exchange
  }
  sums_ = b.value(kFp32 * plan.rows * plan.queries * heads.value_width);
  dq_ = b.value(kFp32 * plan.rows * plan.queries * heads.key_width);
  if (!sends_latents()) block_here_ = b.value(block_ * e);
  dblock_ = b.value(block_ * kFp32);
  end_ = block_ / plan.of_sequence * plan.ends;
  end_sent_ = b.value(end_ * e), end_came_ = b.value(end_ * e), dend_ = b.value(end_ * kFp32);
  if (plan.ring > 1) coming_ = b.value(block_ * e);
  if (plan.gathered > 1) all_ = b.value(plan.gathered * block_ * e), dall_ = b.value(plan.gathered * block_ * kFp32);
}

void ContextAttention::make_forward_calls(LayerBuilder& b, const Branch& branch) {
  const auto call = [&](const char* part, CallPhase phase, Collective collective, int64_t numel, CallGroup over, int64_t rounds = 1) {
    return b.call({.part = branch.part(part), .phase = phase, .collective = collective, .numel = numel,
                   .element_size = b.s.input.element_size, .over = over, .rounds = rounds, .direct = true});
  };
  const CallGroup members = plan.ring > 1 ? CallGroup::kContextInner : CallGroup::kContext;
  const CallGroup round = exchanges() ? CallGroup::kContextOuter : CallGroup::kContext;
  if (exchanges()) heads_forward_ = call("heads", CallPhase::kForward, Collective::kAllToAll, taken_, members);
  if (plan.hops > 0) ring_forward_ = call("ring", CallPhase::kForward, Collective::kShift, block_, round, plan.hops);
  for (int piece = 0; piece < plan.pieces; ++piece)
    ends_[piece].forward = call("ring", CallPhase::kForward, piece == 0 ? Collective::kShift : Collective::kShiftBack, end_, round);
  if (plan.gathered > 1)
    gather_forward_ = call("gather", CallPhase::kForward, Collective::kAllGather, plan.gathered * block_, CallGroup::kContext);
  if (exchanges()) heads_back_ = call("heads", CallPhase::kGather, Collective::kAllToAll, given_, members);
}

void ContextAttention::make_backward_calls(LayerBuilder& b, const Branch& branch) {
  const auto call = [&](const char* part, CallPhase phase, Collective collective, int64_t numel, CallGroup over, int64_t element_size,
                        int64_t rounds = 1) {
    return b.call({.part = branch.part(part), .phase = phase, .collective = collective, .numel = numel, .element_size = element_size,
                   .over = over, .rounds = rounds, .direct = true});
  };
  const int64_t e = b.s.input.element_size;
  const CallGroup members = plan.ring > 1 ? CallGroup::kContextInner : CallGroup::kContext;
  const CallGroup round = exchanges() ? CallGroup::kContextOuter : CallGroup::kContext;
  if (exchanges()) dout_exchange_ = call("heads", CallPhase::kBackward, Collective::kAllToAll, given_, members, e);
  if (plan.hops > 0) {  // gradients come home all the way round
    ring_again_ = call("ring", CallPhase::kGather, Collective::kShift, block_, round, e, plan.hops);
    ring_backward_ = call("ring", CallPhase::kBackward, Collective::kShift, block_, round, kFp32, plan.hops);
    ring_home_ = call("ring", CallPhase::kBackward, Collective::kShift, block_, round, kFp32, plan.ring - plan.hops);
    b.d.calls[static_cast<size_t>(ring_again_)].turns_with_next = true;
  }
  for (int piece = 0; piece < plan.pieces; ++piece)
    ends_[piece].again = call("ring", CallPhase::kGather, piece == 0 ? Collective::kShift : Collective::kShiftBack, end_, round, e);
  for (int piece = 0; piece < plan.pieces; ++piece)
    ends_[piece].home = call("ring", CallPhase::kBackward, piece == 0 ? Collective::kShiftBack : Collective::kShift, end_, round, kFp32);
  if (plan.gathered > 1) {
    const int64_t all = plan.gathered * block_;
    gather_again_ = call("gather", CallPhase::kGather, Collective::kAllGather, all, CallGroup::kContext, e);
    scatter_ = call("gather", CallPhase::kBackward, Collective::kReduceScatter, all, CallGroup::kContext, kFp32);
  }
  if (exchanges()) dheads_exchange_ = call("heads", CallPhase::kBackward, Collective::kAllToAll, taken_, members, e);
}

// What queries see of a block is said anew for each; keys and values are made of a latent, or copied for each query head.
int64_t ContextAttention::rectangle_bytes(LayerBuilder& b) const {
  const int64_t spans = 2 * kInt32 * plan.rows, e = b.s.input.element_size;
  if (!sends_latents()) return spans + repeated_ * e;
  return spans + e * (repeated_ + plan.rows * (plan.queries * heads_.made() + heads_.latent - heads_.shared_key));
}

void ContextAttention::attend_forward(LayerBuilder& b) const {
  const int64_t widest = std::max(heads_.key_width, heads_.value_width);
  b.kernel(kForwards, rectangle_bytes(b) + attention_scratch(b.s, widest, {.sequences = 2, .blocks = 3, .keys = plan.of_sequence}));
}

void ContextAttention::attend_backward(LayerBuilder& b) const {
  const int64_t widest = std::max(heads_.key_width, heads_.value_width);
  b.kernel(kInputs, rectangle_bytes(b) + kFp32 * repeated_ +
                        attention_scratch(b.s, widest, {.sequences = 4, .blocks = 5, .keys = plan.of_sequence}));
}

void ContextAttention::take_heads(LayerBuilder& b) const {
  b.take(kForwards, shared_);
  b.take(kForwards, sent_), b.take(kForwards, rows_);
  b.communicate(kForwards, heads_forward_, 0);
  b.drop(kForwards, sent_);
}

void ContextAttention::give_output(LayerBuilder& b, int out) const {
  b.take(kForwards, output_), b.take(kForwards, output_);
  b.communicate(kForwards, heads_back_, 0);
  b.drop(kForwards, output_);
  b.take(kForwards, out), b.drop(kForwards, output_), b.drop(kForwards, shared_);
  for (const int value : {rows_, out_, logsumexp_}) b.drop(kLose, value);
}

// One block is worked on while the next one comes: one step as all of them are.
void ContextAttention::ring_forward(LayerBuilder& b) const {
  b.take(kForwards, coming_);
  b.start(kForwards, ring_forward_);
  attend_forward(b);
  b.join(kForwards, ring_forward_);
  b.drop(kForwards, coming_);  // the one before it, which is as large
  attend_forward(b);
}

// The gradients of a block follow it, one step behind: what has come is added to what is made here. The first step, of all between one
// that has others on both sides, and the last.
void ContextAttention::ring_backward(LayerBuilder& b) const {
  b.take(kInputs, coming_), b.start(kInputs, ring_again_);
  b.take(kInputs, dblock_);
  attend_backward(b);
  b.take(kInputs, dblock_), b.start(kInputs, ring_backward_);
  b.join(kInputs, ring_again_), b.drop(kInputs, coming_);
  const auto add_coming = [&](int call) {
    b.take(kInputs, dblock_);
    attend_backward(b);
    b.join(kInputs, ring_backward_), b.drop(kInputs, dblock_);
    b.take(kInputs, dblock_), b.start(kInputs, call);
    b.drop(kInputs, dblock_);
  };
  if (plan.hops > 1) {
    b.take(kInputs, coming_), b.start(kInputs, ring_again_);
    add_coming(ring_backward_);
    b.join(kInputs, ring_again_), b.drop(kInputs, coming_);
  }
  add_coming(ring_home_);
  b.join(kInputs, ring_home_), b.drop(kInputs, dblock_);
}

// The ends of pieces travel while the queries see what is here.
void ContextAttention::ends_forward(LayerBuilder& b) const {
  attend_forward(b);
  b.drop(kForwards, block_here_);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    b.join(kForwards, ends_[piece].forward), b.drop(kForwards, end_sent_);
    attend_forward(b);
    b.drop(kForwards, end_came_);
  }
}

void ContextAttention::ends_backward(LayerBuilder& b) const {
  for (int piece = 0; piece < plan.pieces; ++piece)
    b.take(kInputs, end_sent_), b.take(kInputs, end_came_), b.start(kInputs, ends_[piece].again);
  b.take(kInputs, block_here_), b.take(kInputs, dblock_);
  attend_backward(b);
  b.drop(kInputs, block_here_);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    b.join(kInputs, ends_[piece].again), b.drop(kInputs, end_sent_), b.take(kInputs, dend_);
    attend_backward(b);
    b.take(kInputs, dend_), b.start(kInputs, ends_[piece].home), b.drop(kInputs, end_came_);
  }
  for (int piece = 0; piece < plan.pieces; ++piece)
    b.join(kInputs, ends_[piece].home), b.drop(kInputs, dend_), b.drop(kInputs, dend_);
}

void ContextAttention::forward(LayerBuilder& b, int out, int logsumexp) const {
  if (exchanges()) take_heads(b);
  for (int piece = 0; piece < plan.pieces; ++piece)
    b.take(kForwards, end_sent_), b.take(kForwards, end_came_), b.start(kForwards, ends_[piece].forward);
  b.take(kForwards, block_here_);
  if (plan.gathered > 1) b.take(kForwards, all_), b.start(kForwards, gather_forward_);
  b.take(kForwards, sums_), b.take(kForwards, exchanges() ? logsumexp_ : logsumexp);
  if (plan.ends > 0)
    ends_forward(b);
  else
    plan.hops > 0 ? ring_forward(b) : attend_forward(b);
  if (plan.gathered > 1) b.join(kForwards, gather_forward_), attend_forward(b), b.drop(kForwards, all_);
  if (plan.ends == 0) b.drop(kForwards, block_here_);
  if (b.s.fp32) b.drop(kForwards, sums_);  // they are the output
  b.take(kForwards, exchanges() ? out_ : out);
  if (!b.s.fp32) b.drop(kForwards, sums_);
  if (exchanges()) give_output(b, out);
}

void ContextAttention::gathered_backward(LayerBuilder& b) const {
  b.take(kInputs, dall_), b.take(kInputs, all_);
  b.start(kInputs, gather_again_);
  attend_backward(b);
  b.join(kInputs, gather_again_);
  attend_backward(b);
  b.drop(kInputs, all_), b.take(kInputs, dblock_);
  b.communicate(kInputs, scatter_, 0);
  b.drop(kInputs, dall_);
}

void ContextAttention::backward(LayerBuilder& b) const {
  if (exchanges()) {
    b.take(kInputs, shared_), b.take(kInputs, output_), b.take(kInputs, output_);
    b.communicate(kInputs, dout_exchange_, 0);
    b.drop(kInputs, output_);
  }
  b.take(kInputs, dq_);
  if (plan.ends == 0) b.take(kInputs, block_here_);
  if (plan.ends > 0) {
    ends_backward(b);
  } else if (plan.hops > 0) {
    ring_backward(b);
  } else if (plan.gathered > 1) {
    gathered_backward(b);
  } else {
    b.take(kInputs, dblock_);
    attend_backward(b);
  }
  if (plan.ends == 0) b.drop(kInputs, block_here_);
  if (exchanges()) give_gradients(b);
  b.drop(kInputs, dblock_), b.drop(kInputs, dq_);
}

// What was kept has become the gradients.
void ContextAttention::give_gradients(LayerBuilder& b) const {
  b.take(kInputs, sent_), b.take(kInputs, sent_);
  b.communicate(kInputs, dheads_exchange_, 0);
  b.drop(kInputs, sent_);
  b.take(kInputs, dkeys_);
  b.kernel(kInputs, 0);
  b.drop(kInputs, dkeys_), b.drop(kInputs, sent_);
  for (const int value : {rows_, out_, logsumexp_, output_, shared_}) b.drop(kInputs, value);
}

}  // namespace lockstep::arch
