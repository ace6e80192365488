#include "lockstep/parallel/tensor/embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sum.h>

#include <utility>

#include "lockstep/nn/accumulate.h"

namespace lockstep::parallel {

VocabParallelEmbedding::VocabParallelEmbedding(nn::Parameter tokens, nn::Parameter positions, nn::Dropout dropout,
                                               TensorGroup& group, int64_t first_token)
    : Embedding(std::move(tokens), std::move(positions), std::move(dropout)),
      group_(group),
      first_token_(first_token) {}

// [B, S] -> [B, S, D]: the rows of tokens that live here, zeros for all others.
at::Tensor VocabParallelEmbedding::look_up(const at::Tensor& tokens) const {
  const int64_t here = tokens_.value.size(0);
  const at::Tensor local = tokens.sub(first_token_);
  const at::Tensor elsewhere = at::logical_or(local.lt(0), local.ge(here));
  return at::embedding(tokens_.value, local.clamp(0, here - 1)).masked_fill_(elsewhere.unsqueeze(-1), 0);
}

at::Tensor VocabParallelEmbedding::embed(const at::Tensor& tokens, int64_t start) const {
  at::Tensor y = look_up(tokens);
  group_.all_reduce(y, calls_.with(program::CallPhase::kForward))();
  if (positions_.defined()) y.add_(positions_.value.narrow(0, start, tokens.size(1)));
  return y;
}

at::Tensor VocabParallelEmbedding::rows_of(const at::Tensor& tokens) const {
  if (!group_.sequence_parallel()) return embed(tokens, 0);
  at::Tensor y = group_.scatter_rows(nn::flatten_rows(look_up(tokens)), calls_.with(program::CallPhase::kForward))();
  if (positions_.defined()) y.add_(at::embedding(positions_.value, positions_here(tokens)));
  return y;
}

// The positions of this rank's rows.
at::Tensor VocabParallelEmbedding::positions_here(const at::Tensor& tokens) const {
  const mesh::Range rows = group_.local_rows(tokens.numel());
  return at::remainder(at::arange(rows.begin, rows.end, tokens.options()), tokens.size(1));
}

void VocabParallelEmbedding::backward_weight(nn::Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  const at::Tensor tokens = kept.tokens;
  at::Tensor dy = nn::flatten_rows(std::exchange(kept.dy, {}));
  if (group_.sequence_parallel()) {
    if (positions_.defined()) nn::accumulate_rows(positions_.grad, positions_here(tokens), dy);
    dy = group_.gather_rows(dy, tokens.numel(), calls_.with(program::CallPhase::kBackward))();
  } else if (positions_.defined()) {
    const at::Tensor by_sequence = dy.view({tokens.size(0), tokens.size(1), -1});
    positions_.grad.narrow(0, 0, tokens.size(1)).add_(at::sum(by_sequence, {0}, /*keepdim=*/false, at::kFloat));
  }
  accumulate_here(tokens.reshape({-1}).sub(first_token_), dy);
  kept.tokens.reset();
}

// local [M]: the tokens, counted from this rank's first; dy [M, D].
void VocabParallelEmbedding::accumulate_here(const at::Tensor& local, const at::Tensor& dy) const {
  const int64_t rows = tokens_.value.size(0);
  const at::Tensor lives_here = local.ge(0).logical_and_(local.lt(rows));
  if (local.is_cpu()) {
    const at::Tensor here = at::nonzero(lives_here).squeeze(1);
    return nn::accumulate_rows(tokens_.grad, at::index_select(local, 0, here), at::index_select(dy, 0, here));
  }
  // How many they are a device would have to tell the host. So other ranks' tokens add zeros, to rows spread as theirs are.
  nn::accumulate_rows(tokens_.grad, at::remainder(local, rows), dy.masked_fill(lives_here.logical_not().unsqueeze(1), 0));
}

}  // namespace lockstep::parallel
