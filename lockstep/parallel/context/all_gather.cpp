#include "lockstep/parallel/context/all_gather.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/nn/attention_sinks.h"
#include "lockstep/parallel/context/blocks.h"

namespace lockstep::parallel {

using program::CallPhase;

namespace {

struct AllGatherSaved : nn::ContextAttention::Saved {
  nn::ContextAttention::Heads heads{};  // views of this rank's
  at::Tensor out;                       // [B, T, H, V], a view of what was returned
  at::Tensor logsumexp;
  const nn::TokenPlaces* places = nullptr;
  nn::ContextAttention::Options options{};
};

// Own keys first, while those of the others are on their way.
class AllGatherAttention : public nn::ContextAttention {
 public:
  AllGatherAttention(ContextGroup& group, const program::CallId& calls) : group_(group), calls_(calls) {}

  at::Tensor forward(const Heads& heads, const nn::TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) override {
    group_.check(places);
    const QueriesHere queries(heads.q, places, options);
    DenseBlocks blocks(heads.k, heads.v);
    nn::SeenSums seen;
    for_blocks(blocks.own(0, queries.tokens()), CallPhase::kForward,
               [&](int rank, const at::Tensor& block) { queries.attend(queries.all_of(rank), block, blocks, seen); });
    if (options.sinks.defined()) nn::apply_sinks(options.sinks, seen.out, seen.logsumexp);
    const at::Tensor out = seen.out.to(heads.q.scalar_type());
    if (saved) {
      auto kept = std::make_unique<AllGatherSaved>();
      kept->heads = heads, kept->out = out, kept->logsumexp = seen.logsumexp;
      kept->places = &places, kept->options = options;
      *saved = std::move(kept);
    }
    return out.view({out.size(0), out.size(1), -1});
  }

  void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const nn::AttentionCoreGrads& grads) override {
    const auto& kept = static_cast<const AllGatherSaved&>(*saved);
    if (kept.options.sinks.defined())
      nn::add_sinks_gradient(kept.options.sinks, dout.view(kept.out.sizes()), kept.out, kept.logsumexp, grads.dsinks);
    const QueriesHere queries(kept.heads.q, *kept.places, kept.options);
    DenseBlocks blocks(kept.heads.k, kept.heads.v);
    const QueriesHere::Backward pass = queries.begin_backward(dout, kept.out, kept.logsumexp);
    const at::Tensor own = blocks.own(0, queries.tokens()), sums = at::zeros({group_.size(), own.numel()}, own.options().dtype(at::kFloat));
    for_blocks(own, CallPhase::kGather,
               [&](int rank, const at::Tensor& block) { queries.attend_backward(queries.all_of(rank), block, blocks, pass, sums.select(0, rank)); });
    const KeyBlocks::Made own_sums = blocks.split(group_.reduce_scatter(sums, calls_.with(CallPhase::kBackward))());
    grads.dq.copy_(pass.dq);
    grads.dk.copy_(own_sums.k);
    grads.dv.copy_(own_sums.v);
  }

 private:
  template <typename Body>
  void for_blocks(const at::Tensor& own, CallPhase phase, const Body& body) {
    const nn::Pending all = group_.gather(own, calls_.with(phase));
    body(group_.rank(), own);
    const at::Tensor whole = all();
    for (int rank = 0; rank < group_.size(); ++rank)
      if (rank != group_.rank()) body(rank, whole.select(0, rank));
  }

  ContextGroup& group_;
  const program::CallId calls_;
};

}  // namespace

std::unique_ptr<nn::ContextAttention> make_all_gather_attention(ContextGroup& group, const program::CallId& calls) {
  return std::make_unique<AllGatherAttention>(group, calls);
}

}  // namespace lockstep::parallel
