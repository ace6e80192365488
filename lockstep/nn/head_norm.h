// RMSNorm of every query head and every key head over its own K elements, before the rotation (Henry et al.,
// Query-Key Normalization for Transformers, 2020; as in Qwen3). The heads of one kind share one weight [K].
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/norm.h"

namespace lockstep::nn {

// q [B, S, H, K] and k [B, S, KV, K]: views with any strides but that of K, which is 1, changed in place. The
// weights' gradients are sums over the heads that are given.
class HeadNorm {
 public:
  struct Saved {
    Norm::Saved q, k;  // copies of what came in; after backward_input its gradients too
  };

  HeadNorm(Parameter q_weight, Parameter k_weight, double eps);

  void forward(const at::Tensor& q, const at::Tensor& k, Saved* saved);
  // Selective recomputation: q and k become what came in, and nothing is kept beside them; forward(q, k, &saved) brings
  // the same bits back.
  void forget(const at::Tensor& q, const at::Tensor& k, Saved& saved);
  // dq, dk: gradients of what forward left, become those of what it was given.
  void backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved);
  void backward_weight(Saved& saved);  // releases all of saved

 private:
  RmsNorm q_;
  RmsNorm k_;
};

}  // namespace lockstep::nn
