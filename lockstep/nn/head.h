// The last layer: final norm, projection to the vocabulary, softmax cross-entropy, in chunks of rows so that the logits
// of a microbatch are never held at once. Training computes loss, gradient of the norm's output and gradient of the
// projection weight chunk by chunk in the one forward pass (3 GEMMs in total instead of 4 with a recomputation): the
// gradient of the loss is softmax - onehot, known as soon as the logits are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/norm.h"

namespace lockstep::nn {

// forward:          loss = sum over valid targets of -log softmax(norm(x) W^T)[target], fp32 0-d. Rows with target -100
//                   count nothing and send back nothing. While training it also adds to the gradient of W.
// backward_input:   the backward of the final norm; `dy` is undefined (the loss's own gradient is 1).
// backward_weight:  the norm's weights. W's gradient is complete after forward.
// Logits are products in the compute dtype; softmax, loss and its gradient are fp32.
class Head : public Layer {
 public:
  // weight [V, D]: "head.weight", or the token embedding when tied. chunk_rows: rows of logits at a time.
  Head(std::unique_ptr<Norm> norm, Parameter weight, int64_t chunk_rows);

  at::Tensor forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

  virtual at::Tensor logits(const at::Tensor& x);  // [..., D] -> [..., V] fp32; for generation

 protected:
  struct Kept : Saved {
    Norm::Saved norm;
    at::Tensor dh;  // [B, S, D]: gradient of the norm's output
  };
  // Adds to W's gradient and overwrites `rows` with their own.
  void chunk_backward(at::Tensor rows, const at::Tensor& dlogits);

  std::unique_ptr<Norm> norm_;
  Parameter weight_;
  int64_t chunk_rows_;
};

}  // namespace lockstep::nn
