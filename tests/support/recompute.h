// A step of layers by hand, as the engine makes it, with blocks that keep all, selectively, or their input alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/nn/layer.h"

namespace lockstep::testing {

// A small model of the family: heads that share keys and values in all but gpt2, normed ones in qwen3.
inline arch::ModelConfig few_blocks(arch::Family family, int64_t layers, double dropout) {
  arch::ModelConfig model{.family = family,
                          .layers = layers,
                          .hidden = 24,
                          .heads = 6,
                          .kv_heads = 6,
                          .head_size = 4,
                          .ffn = 40,
                          .vocab_size = 53,
                          .max_seq_len = 128,
                          .dropout = dropout};
  if (family != arch::Family::kGpt2) model.kv_heads = 2, model.head_size = 6;
  model.qk_norm = family == arch::Family::kQwen3;
  return model;
}

// What F of a layer leaves behind, and RECOMPUTE before its backward.
class KeptLayer {
 public:
  KeptLayer(nn::Layer& layer, arch::Recompute choice) : layer_(layer), choice_(choice) {}

  at::Tensor forward(const at::Tensor& x, const nn::Microbatch& microbatch) {
    const bool full = choice_ == arch::Recompute::kFull;
    at::Tensor y = layer_.forward(x, microbatch, full ? nullptr : &saved_);
    if (full) x_ = x;
    if (choice_ == arch::Recompute::kSelective) layer_.forget(*saved_);
    return y;
  }
  void recompute(const nn::Microbatch& microbatch) {
    if (choice_ == arch::Recompute::kFull) saved_ = layer_.recompute(std::exchange(x_, {}), microbatch);
    if (choice_ == arch::Recompute::kSelective) layer_.restore(*saved_);
  }
  nn::Layer& layer() { return layer_; }
  nn::Saved& saved() { return *saved_; }

 private:
  nn::Layer& layer_;
  arch::Recompute choice_;
  at::Tensor x_;
  std::unique_ptr<nn::Saved> saved_;
};

enum class WeightGradients { kInB, kAfterAllInputs };

// Forward and backward of all layers; block i (layer i + 1) by blocks[i]. Gradients add up in the parameters. Returns the
// sum of the losses.
inline double forward_backward(const std::vector<std::unique_ptr<nn::Layer>>& layers, const nn::Microbatch& microbatch,
                               std::span<const arch::Recompute> blocks, WeightGradients when) {
  std::vector<KeptLayer> kept;
  at::Tensor x;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool block = i >= 1 && i <= blocks.size();
    kept.emplace_back(*layers[i], block ? blocks[i - 1] : arch::Recompute::kNone);
    x = kept.back().forward(x, microbatch);
  }
  at::Tensor dy;
  for (size_t i = kept.size(); i-- > 0;) {
    kept[i].recompute(microbatch);
    dy = when == WeightGradients::kInB ? kept[i].layer().backward(dy, kept[i].saved())
                                       : kept[i].layer().backward_input(dy, kept[i].saved());
  }
  if (when == WeightGradients::kAfterAllInputs)
    for (size_t i = kept.size(); i-- > 0;) kept[i].layer().backward_weight(kept[i].saved());
  return kept.back().saved().loss.item<double>();
}

}  // namespace lockstep::testing
