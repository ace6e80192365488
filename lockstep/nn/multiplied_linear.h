// A linear whose outputs are multiplied by fixed numbers (muP: Yang et al. 2022, section 4, as Zuo et al. 2025 use them).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/nn/linear.h"

namespace lockstep::nn {

// Neighbouring outputs of one factor.
struct MultipliedColumns {
  int64_t columns = 0;
  double factor = 1;
};

// y = (x W^T + b) f, column by column. The products are those of `inner`; y, which is its own, and dy are multiplied in place: dy is the
// caller's to give away, and what backward_weight takes is multiplied already. No tensor more is kept, and every call is inner's.
class MultipliedLinear : public Linear {
 public:
  // The columns are those of inner's outputs here.
  MultipliedLinear(std::unique_ptr<Linear> inner, std::vector<MultipliedColumns> columns);

  at::Tensor forward(const at::Tensor& x, Saved* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override { inner_->backward_weight(saved); }

 private:
  void multiply_columns(const at::Tensor& y) const;

  std::unique_ptr<Linear> inner_;
  std::vector<MultipliedColumns> columns_;
};

// `inner` itself where all factors are 1.
std::unique_ptr<Linear> multiplied(std::unique_ptr<Linear> inner, std::vector<MultipliedColumns> columns);

}  // namespace lockstep::nn
