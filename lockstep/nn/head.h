// The last layer: final norm, projection to the vocabulary, softmax cross-entropy, in chunks of rows so that the logits
// of a microbatch are never held at once. All of it happens in backward: the gradient of the loss is softmax - onehot, known
// as soon as the logits are, so that loss, gradient of the norm's output and gradient of the projection weight are made chunk
// by chunk in one pass (3 GEMMs in total instead of 4 with a recomputation). In a pipeline the last stage's F and B are then
// as long, one beside the other, as those of its neighbours.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/norm.h"

namespace lockstep::nn {

// forward:          without `saved` the loss: the sum over valid targets of -log softmax(norm(x) W^T)[target], fp32 0-d. Rows
//                   with target -100 count nothing and send back nothing. With it x is kept, and nothing returned.
// backward_input:   `dy` is undefined (the loss's own gradient is 1). Puts the loss into Saved::loss and adds to the gradient
//                   of W, which the logits are needed for.
// backward_weight:  the norm's weights.
// Logits are products in the compute dtype; softmax, loss and its gradient are fp32.
class Head : public Layer {
 public:
  // weight [V, D]: "head.weight", or the token embedding when tied. chunk_rows: rows of logits at a time.
  // factor: of all logits (nn/multiplied_linear.h).
  Head(std::unique_ptr<Norm> norm, Parameter weight, int64_t chunk_rows, double factor = 1);

  at::Tensor forward(const at::Tensor& x, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

  virtual at::Tensor logits(const at::Tensor& x);  // [..., D] -> [..., V] fp32; for generation

 protected:
  // What a head that derives may do in another way: h as [M, D], M targets; the gradient of these rows as that of h; the loss
  // of a chunk, whose logits become their gradient.
  virtual at::Tensor all_rows(const at::Tensor& h, int64_t rows);
  virtual at::Tensor own_rows(const at::Tensor& dh);
  virtual at::Tensor chunk_loss(const at::Tensor& logits, const at::Tensor& targets);

  std::unique_ptr<Norm> norm_;
  Parameter weight_;
  int64_t chunk_rows_;
  double factor_;

 private:
  struct Kept : Saved {
    at::Tensor x;
    at::Tensor targets;  // [M]
    Norm::Saved norm;    // from backward_input
  };
  enum class Gradients { kNone, kAdd };
  at::Tensor normed(const at::Tensor& x, Norm::Saved* saved);  // and multiplied, as D is less than V
  // rows [M, D]. With gradients W's are added, and `rows` become their own.
  at::Tensor loss(const at::Tensor& rows, const at::Tensor& targets, Gradients gradients);
};

}  // namespace lockstep::nn
