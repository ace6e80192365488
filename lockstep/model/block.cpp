#include "lockstep/model/block.h"

#include <utility>

namespace lockstep::model {

// The block's input x is kept as attention_norm.x, the sum after attention as mlp_norm.x.
struct BlockSaved : nn::Saved {
  nn::Norm::Saved attention_norm;
  nn::Attention::Saved attention;
  nn::Dropout::Saved attention_dropout;
  nn::Norm::Saved mlp_norm;
  nn::Mlp::Saved mlp;
  nn::Dropout::Saved mlp_dropout;
  nn::Microbatch microbatch;  // the key of both masks; the engine's own tensors
};

namespace {

template <typename T>
T* keep(BlockSaved* saved, T BlockSaved::* member) {
  return saved ? &(saved->*member) : nullptr;
}

}  // namespace

Block::Block(Parts parts) : parts_(std::move(parts)) {}

at::Tensor Block::attend(const at::Tensor& x, const nn::Microbatch& microbatch, BlockSaved* saved) {
  const nn::Sequences sequences{.count = microbatch.tokens.size(0), .length = microbatch.tokens.size(1)};
  at::Tensor branch =
      parts_.attention->forward(parts_.attention_norm->forward(x, keep(saved, &BlockSaved::attention_norm)),
                                keep(saved, &BlockSaved::attention), sequences);
  if (saved) saved->microbatch = microbatch;
  return parts_.attention_dropout.forward(std::move(branch), microbatch, keep(saved, &BlockSaved::attention_dropout));
}

// Both sums are taken in place on the branch, which nothing else holds: the first one by the norm behind it.
at::Tensor Block::forward(const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved) {
  auto kept = saved ? std::make_unique<BlockSaved>() : nullptr;
  BlockSaved* s = kept.get();
  at::Tensor middle = attend(x, microbatch, s);
  at::Tensor branch = parts_.mlp->forward(parts_.mlp_norm->forward_sum(middle, x, keep(s, &BlockSaved::mlp_norm)),
                                          keep(s, &BlockSaved::mlp), microbatch.tokens.numel());
  at::Tensor y =
      parts_.mlp_dropout.forward(std::move(branch), microbatch, keep(s, &BlockSaved::mlp_dropout)).add_(middle);
  if (saved) *saved = std::move(kept);
  return y;
}

std::unique_ptr<nn::Saved> Block::recompute(const at::Tensor& x, const nn::Microbatch& microbatch) {
  auto s = std::make_unique<BlockSaved>();
  at::Tensor middle = attend(x, microbatch, s.get());
  parts_.mlp->recompute(parts_.mlp_norm->forward_sum(middle, x, &s->mlp_norm), s->mlp, microbatch.tokens.numel());
  parts_.mlp_dropout.redraw(middle, microbatch, s->mlp_dropout);
  return s;
}

void Block::forget(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  parts_.attention->forget(s.attention);
  s.attention_dropout = {};
  parts_.mlp->forget(s.mlp);
  s.mlp_dropout = {};
}

void Block::restore(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  const at::Tensor& middle = s.mlp_norm.x;
  parts_.attention->restore(parts_.attention_norm->forward(s.attention_norm.x, nullptr), s.attention);
  parts_.attention_dropout.redraw(middle, s.microbatch, s.attention_dropout);
  parts_.mlp->restore(parts_.mlp_norm->forward(middle, nullptr), s.mlp);
  parts_.mlp_dropout.redraw(middle, s.microbatch, s.mlp_dropout);
}

at::Tensor Block::backward_input(const at::Tensor& dy, nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  const at::Tensor dmlp = parts_.mlp->backward_input(parts_.mlp_dropout.backward(dy, s.mlp_dropout), s.mlp);
  const at::Tensor dmiddle = parts_.mlp_norm->backward_input(dmlp, s.mlp_norm, dy);
  const at::Tensor dattention =
      parts_.attention->backward_input(parts_.attention_dropout.backward(dmiddle, s.attention_dropout), s.attention);
  return parts_.attention_norm->backward_input(dattention, s.attention_norm, dmiddle);
}

void Block::backward_weight(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  parts_.mlp->backward_weight(s.mlp);
  parts_.mlp_norm->backward_weight(s.mlp_norm);
  parts_.attention->backward_weight(s.attention);
  parts_.attention_norm->backward_weight(s.attention_norm);
}

at::Tensor Block::backward(const at::Tensor& dy, nn::Saved& saved) {
  if (!parts_.overlap) return Layer::backward(dy, saved);
  auto& s = static_cast<BlockSaved&>(saved);
  nn::Pending dmlp = parts_.mlp->start_backward_input(parts_.mlp_dropout.backward(dy, s.mlp_dropout), s.mlp);
  parts_.mlp->backward_weight(s.mlp);
  const at::Tensor dmiddle = parts_.mlp_norm->backward_input(dmlp(), s.mlp_norm, dy);
  nn::Pending dattention = parts_.attention->start_backward_input(
      parts_.attention_dropout.backward(dmiddle, s.attention_dropout), s.attention);
  parts_.mlp_norm->backward_weight(s.mlp_norm);
  parts_.attention->backward_weight(s.attention);
  at::Tensor dx = parts_.attention_norm->backward_input(dattention(), s.attention_norm, dmiddle);
  parts_.attention_norm->backward_weight(s.attention_norm);
  return dx;
}

at::Tensor Block::decode(const at::Tensor& x, const nn::KvCacheLayer& cache, std::span<const nn::CacheSpan> spans) {
  at::Tensor middle = parts_.attention->decode(parts_.attention_norm->forward(x, nullptr), cache, spans);
  return parts_.mlp->forward(parts_.mlp_norm->forward_sum(middle, x, nullptr), nullptr).add_(middle);
}

}  // namespace lockstep::model
