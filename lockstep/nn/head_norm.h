// RMSNorm of queries and keys before the rotation (Henry et al., Query-Key Normalization for Transformers, 2020): of every head over its own
// K elements, as in Qwen3, where the heads of one kind share one weight [K]; or over all heads of a kind together (whole_norm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/norm.h"

namespace lockstep::nn {

// q [B, S, H, K] and k [B, S, KV, K]: views with any strides but that of K, which is 1, changed in place. The
// weights' gradients are sums over the heads that are given.
class QueryKeyNorm {
 public:
  struct Saved {
    Norm::Saved q, k;  // copies of what came in; after backward_input its gradients too
  };
  virtual ~QueryKeyNorm() = default;

  virtual void forward(const at::Tensor& q, const at::Tensor& k, Saved* saved) = 0;
  // Selective recomputation: q and k become what came in; forward(q, k, &saved) brings the same bits back.
  virtual void forget(const at::Tensor& q, const at::Tensor& k, Saved& saved) = 0;
  // dq, dk: gradients of what forward left, become those of what it was given.
  virtual void backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved) = 0;
  virtual void backward_weight(Saved& saved) = 0;  // releases all of saved
};

class HeadNorm : public QueryKeyNorm {
 public:
  HeadNorm(Parameter q_weight, Parameter k_weight, double eps, bool plus_one = false);

  void forward(const at::Tensor& q, const at::Tensor& k, Saved* saved) override;
  void forget(const at::Tensor& q, const at::Tensor& k, Saved& saved) override;  // nothing is kept beside q and k
  void backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  RmsNorm q_;
  RmsNorm k_;
};

}  // namespace lockstep::nn
