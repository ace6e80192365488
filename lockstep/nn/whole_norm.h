// RMSNorm over all query heads of a token together, and over all its key heads, before the rotation (OLMo 2: OLMo Team 2024). Where others
// have some of the heads, squares of a row are summed over all: two numbers a row, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/nn/head_norm.h"
#include "lockstep/nn/row_sums.h"

namespace lockstep::nn {

// Of q [B, S, H K] and k [B, S, KV K], the heads here side by side. Weights [H K] and [KV K] of the heads here. `sums` null: all heads are
// here.
class WholeNorm : public QueryKeyNorm {
 public:
  struct Options {
    int64_t q_width = 0, k_width = 0;  // elements of all heads, wherever they are
    int64_t key_copies = 1;            // holders of the same key heads; each has a part of their gradient then
    double eps = 0;
    bool plus_one = false;  // multiplies by 1 + weight
  };
  WholeNorm(Parameter q_weight, Parameter k_weight, Options options, std::unique_ptr<RowSums> sums);

  void forward(const at::Tensor& q, const at::Tensor& k, Saved* saved) override;
  // The statistics stay, so forward calls nobody.
  void forget(const at::Tensor& q, const at::Tensor& k, Saved& saved) override;
  void backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  at::Tensor statistics(const at::Tensor& squares, int64_t column, int64_t width) const;

  Parameter q_weight_, k_weight_;
  const Options options_;
  std::unique_ptr<RowSums> sums_;
};

}  // namespace lockstep::nn
