#include "lockstep/model/block.h"

#include <utility>

namespace lockstep::model {
namespace {

// The block's input x is kept as attention_norm.x, the sum after attention as mlp_norm.x.
struct BlockSaved : nn::Saved {
  nn::Norm::Saved attention_norm;
  nn::Attention::Saved attention;
  nn::Dropout::Saved attention_dropout;
  nn::Norm::Saved mlp_norm;
  nn::Mlp::Saved mlp;
  nn::Dropout::Saved mlp_dropout;
};

}  // namespace

Block::Block(Parts parts) : parts_(std::move(parts)) {}

// Both sums are taken in place on the branch, which nothing else holds: the first one by the norm behind it.
at::Tensor Block::forward(const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved) {
  auto kept = saved ? std::make_unique<BlockSaved>() : nullptr;
  BlockSaved* s = kept.get();
  const auto keep = [s](auto BlockSaved::*member) { return s ? &(s->*member) : nullptr; };

  const nn::Sequences sequences{.count = microbatch.tokens.size(0), .length = microbatch.tokens.size(1)};
  at::Tensor branch = parts_.attention->forward(parts_.attention_norm->forward(x, keep(&BlockSaved::attention_norm)),
                                                keep(&BlockSaved::attention), sequences);
  at::Tensor middle =
      parts_.attention_dropout.forward(std::move(branch), microbatch, keep(&BlockSaved::attention_dropout));
  branch = parts_.mlp->forward(parts_.mlp_norm->forward_sum(middle, x, keep(&BlockSaved::mlp_norm)),
                               keep(&BlockSaved::mlp), sequences.count * sequences.length);
  at::Tensor y = parts_.mlp_dropout.forward(std::move(branch), microbatch, keep(&BlockSaved::mlp_dropout)).add_(middle);
  if (saved) *saved = std::move(kept);
  return y;
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
