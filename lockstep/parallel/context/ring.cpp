#include "lockstep/parallel/context/ring.h"

#include <utility>

#include "lockstep/arch/cost.h"
#include "lockstep/base/check.h"
#include "lockstep/nn/attention_sinks.h"

namespace lockstep::parallel {

using program::CallPhase;

nn::Pending Ring::shift(const at::Tensor& tensor, CallPhase phase) const {
  if (alone_) return [tensor] { return tensor; };
  return group_.shift(tensor, calls_.with(phase), over_);
}

int Ring::hops(const QueriesHere& queries) const { return group_.shard().ring_hops(size(), queries.tokens(), queries.window()); }

std::optional<WindowEnds> Ring::ends(const QueriesHere& queries) const {
  const int64_t count = group_.shard().window_ends(size(), queries.tokens(), queries.window());
  return count > 0 ? std::optional<WindowEnds>(std::in_place, group_, over_, calls_, count) : std::nullopt;
}

nn::SeenSums Ring::forward(const QueriesHere& queries, KeyBlocks& blocks) const {
  if (const auto ends = this->ends(queries)) return ends->forward(queries, blocks);
  const int last = hops(queries);
  nn::SeenSums seen;
  at::Tensor block = blocks.own(0, queries.tokens());
  for (int step = 0; step <= last; ++step) {
    nn::Pending next;
    if (step < last) next = shift(block, CallPhase::kForward);
    queries.attend(queries.all_of(source(step)), block, blocks, seen);
    if (next) block = next();
  }
  return seen;
}

at::Tensor Ring::backward(const QueriesHere& queries, KeyBlocks& blocks, const QueriesHere::Backward& pass) const {
  if (const auto ends = this->ends(queries)) return ends->backward(queries, blocks, pass);
  const int last = hops(queries);
  at::Tensor block = blocks.own(0, queries.tokens());
  if (last == 0) return queries.attend_backward(queries.all_of(source(0)), block, blocks, pass, zeros_fp32(block.sizes(), block));
  nn::Pending coming;  // what the ranks before have added to the gradient of `block`
  for (int step = 0; step < size(); ++step) {
    nn::Pending next;
    if (step < last) next = shift(block, CallPhase::kGather);
    at::Tensor sum;
    if (step == 0) sum = zeros_fp32(block.sizes(), block);
    if (step <= last) sum = queries.attend_backward(queries.all_of(source(step)), block, blocks, pass, sum);
    if (coming) {
      const at::Tensor before = coming();
      sum = sum.defined() ? sum.add_(before) : before;
    }
    coming = shift(sum, CallPhase::kBackward);
    if (next) block = next();
  }
  return coming();
}

namespace {

struct RingSaved : nn::ContextAttention::Saved {
  at::Tensor q, k, v;  // views; of sources k alone: what is theirs
  at::Tensor out;      // [B, T, H, V], a view of what was returned
  at::Tensor logsumexp;
  const nn::TokenPlaces* places = nullptr;
  nn::ContextAttention::Options options{};
};

class RingAttention : public nn::ContextAttention {
 public:
  RingAttention(ContextGroup& group, const program::CallId& calls) : group_(group), ring_(group, ContextGroup::Over::kAll, calls) {}

  at::Tensor forward(const Heads& heads, const nn::TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) override {
    DenseBlocks blocks(heads.k, heads.v);
    return run(heads, blocks, places, options, saved);
  }

  void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const nn::AttentionCoreGrads& grads) override {
    const auto& kept = static_cast<const RingSaved&>(*saved);
    DenseBlocks blocks(kept.k, kept.v);
    if (kept.options.sinks.defined())
      nn::add_sinks_gradient(kept.options.sinks, dout.view(kept.out.sizes()), kept.out, kept.logsumexp, grads.dsinks);
    const KeyBlocks::Made sums = blocks.split(run_backward(dout, kept, blocks, grads.dq));
    grads.dk.copy_(sums.k);
    grads.dv.copy_(sums.v);
  }

  bool moves_sources() const override { return true; }

  at::Tensor forward_of(nn::KeySource& source, const at::Tensor& q, const at::Tensor& own, const nn::TokenPlaces& places,
                        const Options& options, std::unique_ptr<Saved>* saved) override {
    LOCKSTEP_CHECK(!options.sinks.defined(), "sinks beside keys that are made here");
    SourceBlocks blocks(source, own);
    return run({.q = q, .k = own, .v = {}}, blocks, places, options, saved);
  }

  at::Tensor backward_of(nn::KeySource& source, const at::Tensor& dout, std::unique_ptr<Saved> saved, const at::Tensor& dq) override {
    const auto& kept = static_cast<const RingSaved&>(*saved);
    SourceBlocks blocks(source, kept.k);
    return run_backward(dout, kept, blocks, dq);
  }

 private:
  at::Tensor run(const Heads& heads, KeyBlocks& blocks, const nn::TokenPlaces& places, const Options& options,
                 std::unique_ptr<Saved>* saved) const {
    group_.check(places);
    const nn::SeenSums seen = ring_.forward(QueriesHere(heads.q, places, options), blocks);
    if (options.sinks.defined()) nn::apply_sinks(options.sinks, seen.out, seen.logsumexp);
    const at::Tensor out = seen.out.to(heads.q.scalar_type());
    if (saved) {
      auto kept = std::make_unique<RingSaved>();
      kept->q = heads.q, kept->k = heads.k, kept->v = heads.v;
      kept->out = out, kept->logsumexp = seen.logsumexp;
      kept->places = &places, kept->options = options;
      *saved = std::move(kept);
    }
    return out.view({out.size(0), out.size(1), -1});
  }

  at::Tensor run_backward(const at::Tensor& dout, const RingSaved& kept, KeyBlocks& blocks, const at::Tensor& dq) const {
    const QueriesHere queries(kept.q, *kept.places, kept.options);
    const QueriesHere::Backward pass = queries.begin_backward(dout, kept.out, kept.logsumexp);
    at::Tensor sums = ring_.backward(queries, blocks, pass);
    dq.copy_(pass.dq);
    return sums;
  }

  const ContextGroup& group_;
  const Ring ring_;
};

}  // namespace

std::unique_ptr<nn::ContextAttention> make_ring_attention(ContextGroup& group, const program::CallId& calls) {
  return std::make_unique<RingAttention>(group, calls);
}

}  // namespace lockstep::parallel
