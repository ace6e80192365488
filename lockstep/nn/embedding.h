// The first layer: token embeddings, learned positions where the model has them, dropout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/nn/dropout.h"
#include "lockstep/nn/layer.h"

namespace lockstep::nn {

class Embedding : public Layer {
 public:
  // tokens [V, D]; positions [max_seq_len, D] or undefined. Rows of tokens, not of positions, are multiplied by `scale`, which is rounded
  // to the dtype of `tokens` first (Gemma).
  Embedding(Parameter tokens, Parameter positions, Dropout dropout, double scale = 1);

  at::Tensor forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

  // tokens [B, S] at positions start .. start + S - 1, or at `positions` [B, S] int64 -> [B, S, D], without dropout.
  at::Tensor embed(const at::Tensor& tokens, int64_t start) const;
  at::Tensor embed(const at::Tensor& tokens, const at::Tensor& positions) const;

 protected:
  struct Kept : Saved {
    at::Tensor tokens;  // [B, S]: the microbatch's own, as are the places
    std::shared_ptr<const TokenPlaces> places;
    Dropout::Saved dropout;
    at::Tensor dy;  // [B, S, D]: from backward_input, for W
  };
  // [B, S] -> [B, S, D]: of the tokens alone.
  virtual at::Tensor words(const at::Tensor& tokens) const;
  // What dropout acts on.
  virtual at::Tensor rows_of(const Microbatch& microbatch) const;

  // In place.
  at::Tensor scaled(at::Tensor rows) const { return scale_ == 1 ? rows : rows.mul_(scale_); }

  Parameter tokens_;
  Parameter positions_;
  Dropout dropout_;
  double scale_;
};

}  // namespace lockstep::nn
