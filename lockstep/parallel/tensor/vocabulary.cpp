#include "lockstep/parallel/tensor/vocabulary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sum.h>

#include <utility>
#include <vector>

#include "lockstep/nn/accumulate.h"

namespace lockstep::parallel {

using nn::flatten_rows;
using program::CallPhase;

VocabParallelEmbedding::VocabParallelEmbedding(nn::Parameter tokens, nn::Parameter positions, nn::Dropout dropout,
                                               TensorGroup& group, int64_t vocab_size, double scale)
    : Embedding(std::move(tokens), std::move(positions), std::move(dropout), scale),
      group_(group),
      first_token_(mesh::shard_range(vocab_size, group.size(), group.rank()).begin) {}

// [B, S] -> [B, S, D]: the rows of tokens that live here, zeros for all others.
at::Tensor VocabParallelEmbedding::look_up(const at::Tensor& tokens) const {
  const int64_t here = tokens_.value.size(0);
  const at::Tensor local = tokens.sub(first_token_);
  const at::Tensor elsewhere = at::logical_or(local.lt(0), local.ge(here));
  return scaled(at::embedding(tokens_.value, local.clamp(0, here - 1)).masked_fill_(elsewhere.unsqueeze(-1), 0));
}

at::Tensor VocabParallelEmbedding::words(const at::Tensor& tokens) const {
  at::Tensor y = look_up(tokens);
  group_.all_reduce(y, calls_.with(CallPhase::kForward))();
  return y;
}

at::Tensor VocabParallelEmbedding::rows_of(const nn::Microbatch& microbatch) const {
  if (!group_.sequence_parallel()) return Embedding::rows_of(microbatch);
  const at::Tensor& tokens = microbatch.tokens;
  at::Tensor y = group_.scatter_rows(flatten_rows(look_up(tokens)), calls_.with(CallPhase::kForward))();
  if (positions_.defined()) y.add_(at::embedding(positions_.value, positions_here(tokens, microbatch.places.get())));
  return y;
}

// The positions of this rank's rows.
at::Tensor VocabParallelEmbedding::positions_here(const at::Tensor& tokens, const nn::TokenPlaces* places) const {
  const mesh::Range rows = group_.local_rows(tokens.numel());
  if (places) return places->positions.reshape({-1}).narrow(0, rows.begin, rows.size());
  return at::remainder(at::arange(rows.begin, rows.end, tokens.options()), tokens.size(1));
}

void VocabParallelEmbedding::backward_weight(nn::Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  const at::Tensor tokens = kept.tokens;
  const std::shared_ptr<const nn::TokenPlaces> places = std::exchange(kept.places, {});
  at::Tensor dy = flatten_rows(std::exchange(kept.dy, {}));
  if (group_.sequence_parallel()) {
    if (positions_.defined()) nn::accumulate_rows(positions_.grad, positions_here(tokens, places.get()), dy);
    dy = group_.gather_rows(dy, tokens.numel(), calls_.with(CallPhase::kBackward))();
  } else if (positions_.defined() && places) {
    nn::accumulate_rows(positions_.grad, places->positions.reshape({-1}), dy);
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
    return nn::accumulate_rows(tokens_.grad, at::index_select(local, 0, here), scaled(at::index_select(dy, 0, here)));
  }
  // How many they are a device would have to tell the host. So other ranks' tokens add zeros, to rows spread as theirs are.
  nn::accumulate_rows(tokens_.grad, at::remainder(local, rows), scaled(dy.masked_fill(lives_here.logical_not().unsqueeze(1), 0)));
}

VocabParallelHead::VocabParallelHead(std::unique_ptr<nn::Norm> norm, nn::Parameter weight, int64_t chunk_rows,
                                     TensorGroup& group, int64_t vocab_size, double factor)
    : Head(std::move(norm), std::move(weight), chunk_rows, factor),
      group_(group),
      vocab_size_(vocab_size),
      tokens_(mesh::shard_range(vocab_size, group.size(), group.rank())) {}

at::Tensor VocabParallelHead::all_rows(const at::Tensor& h, int64_t rows) {
  return group_.sequence_parallel() ? group_.gather_rows(h, rows, calls_.with(CallPhase::kForward))() : flatten_rows(h);
}

at::Tensor VocabParallelHead::own_rows(const at::Tensor& dh) { return group_.reduce_output(dh, calls_.with(CallPhase::kBackward))(); }

at::Tensor VocabParallelHead::chunk_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor part = cross_entropy_part_(logits, targets, tokens_.begin);
  const int64_t ranks = group_.size(), rows = targets.size(0);
  const at::Tensor parts = group_.gather_rows(part, ranks * rows, calls_.with(CallPhase::kSoftmax))().view({ranks, rows, 3});
  return cross_entropy_whole_(logits, targets, tokens_.begin, parts, group_.rank());
}

at::Tensor VocabParallelHead::logits(const at::Tensor& x) {
  const at::Tensor local = Head::logits(x);  // [..., V/tp]
  const int64_t rows = local.numel() / local.size(-1), ranks = group_.size();
  // Equal parts for the collective: the first rank's is the largest.
  const int64_t largest = mesh::shard_range(vocab_size_, group_.size(), 0).size();
  const at::Tensor mine = at::constant_pad_nd(flatten_rows(local), {0, largest - local.size(-1)});
  const at::Tensor all = group_.gather_rows(mine, ranks * rows, calls_.with(CallPhase::kLogits))().view({ranks, rows, largest});
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group_.size(); ++rank)
    parts.push_back(all.select(0, rank).narrow(1, 0, mesh::shard_range(vocab_size_, group_.size(), rank).size()));
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = vocab_size_;
  return at::cat(parts, 1).view(shape);
}

}  // namespace lockstep::parallel
