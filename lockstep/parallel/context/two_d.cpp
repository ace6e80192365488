#include "lockstep/parallel/context/two_d.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/nn/attention_sinks.h"
#include "lockstep/parallel/context/head_exchange.h"
#include "lockstep/parallel/context/ring.h"

namespace lockstep::parallel {

using program::CallPhase;

namespace {

struct TwoDSaved : nn::ContextAttention::Saved {
  HeadExchange::Sizes sizes{};
  at::Tensor rows;  // q, k and v of the heads here, of all tokens of the inner ranks (HeadExchange)
  at::Tensor out;   // [B, inner T, qh, V]
  at::Tensor logsumexp;
  const nn::TokenPlaces* places = nullptr;
  nn::ContextAttention::Options options{};
};

class TwoDAttention : public nn::ContextAttention {
 public:
  TwoDAttention(ContextGroup& group, ContextGroup::Over inner, const program::CallId& heads, Ring ring)
      : group_(group), inner_(inner), calls_(heads), ring_(std::move(ring)) {}

  at::Tensor forward(const Heads& heads, const nn::TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) override {
    auto kept = std::make_unique<TwoDSaved>();
    kept->sizes = {.heads = heads.q.size(2), .kv_heads = heads.k.size(2), .key = heads.k.size(3), .value = heads.v.size(3)};
    kept->places = &places, kept->options = options;
    const SharedTokens tokens = shared(places);
    const HeadExchange exchange(group_, inner_, calls_, kept->sizes, tokens);
    kept->rows = exchange.to_heads(heads, CallPhase::kForward);
    const Heads here = exchange.split(kept->rows);
    {
      DenseBlocks blocks = blocks_of(here, exchange);
      nn::SeenSums seen = ring_.forward(QueriesHere(here.q, tokens.places, options), blocks);
      if (options.sinks.defined()) nn::apply_sinks(of_heads_here(options.sinks, exchange), seen.out, seen.logsumexp);
      kept->out = seen.out.to(heads.q.scalar_type());
      kept->logsumexp = std::move(seen.logsumexp);
    }
    at::Tensor out = exchange.outputs_to_tokens(kept->out, CallPhase::kGather);
    if (saved) *saved = std::move(kept);
    return out;
  }

  void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const nn::AttentionCoreGrads& grads) override {
    const auto& kept = static_cast<const TwoDSaved&>(*saved);
    const SharedTokens tokens = shared(*kept.places);
    const HeadExchange exchange(group_, inner_, calls_, kept.sizes, tokens);
    const Heads here = exchange.split(kept.rows);
    DenseBlocks blocks = blocks_of(here, exchange);
    const QueriesHere queries(here.q, tokens.places, kept.options);
    const QueriesHere::Backward pass =
        queries.begin_backward(exchange.outputs_to_heads(dout, CallPhase::kBackward), kept.out, kept.logsumexp);
    if (kept.options.sinks.defined()) add_sinks(kept, exchange, pass.dout, grads.dsinks);
    const KeyBlocks::Made sums = blocks.split(ring_.backward(queries, blocks, pass));
    // In the place of what was kept.
    here.q.copy_(pass.dq);
    here.k.copy_(sums.k);
    here.v.copy_(sums.v);
    exchange.gradients_to_tokens(kept.rows, CallPhase::kBackward, grads);
  }

 private:
  SharedTokens shared(const nn::TokenPlaces& places) const {
    group_.check(places);
    return share_tokens(places, group_.over(inner_).size());
  }
  static DenseBlocks blocks_of(const Heads& here, const HeadExchange& exchange) {
    return {here.k, here.v, exchange.parts().reads_of(exchange.rank())};
  }

  // [heads of this rank, empty ones included] of [H].
  static at::Tensor of_heads_here(const at::Tensor& sinks, const HeadExchange& exchange) {
    const mesh::Range heads = exchange.parts().heads_of(exchange.rank());
    const at::Tensor here = at::zeros({exchange.parts().heads_each()}, sinks.options());
    here.narrow(0, 0, heads.size()).copy_(sinks.narrow(0, heads.begin, heads.size()));
    return here;
  }
  // Of the tokens here: those of other heads are with the ranks that have them.
  static void add_sinks(const TwoDSaved& kept, const HeadExchange& exchange, const at::Tensor& dout, const at::Tensor& dsinks) {
    const mesh::Range heads = exchange.parts().heads_of(exchange.rank());
    const at::Tensor of_heads = at::zeros({exchange.parts().heads_each()}, dsinks.options());
    nn::add_sinks_gradient(of_heads_here(kept.options.sinks, exchange), dout, kept.out, kept.logsumexp, of_heads);
    dsinks.narrow(0, heads.begin, heads.size()).add_(of_heads.narrow(0, 0, heads.size()));
  }

  ContextGroup& group_;
  const ContextGroup::Over inner_;
  const program::CallId calls_;
  const Ring ring_;
};

}  // namespace

std::unique_ptr<nn::ContextAttention> make_2d_attention(ContextGroup& group, const TwoDCalls& calls) {
  return std::make_unique<TwoDAttention>(group, ContextGroup::Over::kInner, calls.heads, Ring(group, ContextGroup::Over::kOuter, calls.ring));
}

std::unique_ptr<nn::ContextAttention> make_all_to_all_attention(ContextGroup& group, const program::CallId& calls) {
  return std::make_unique<TwoDAttention>(group, ContextGroup::Over::kAll, calls, Ring(group, calls));
}

}  // namespace lockstep::parallel
