#include "lockstep/nn/mlp.h"

#include <utility>

namespace lockstep::nn {

Mlp::Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation, std::unique_ptr<Linear> down)
    : up_(std::move(up)), activation_(std::move(activation)), down_(std::move(down)) {}

at::Tensor Mlp::forward(const at::Tensor& x, Saved* saved, int64_t rows) {
  at::Tensor h = up_->forward(x, saved ? &saved->up : nullptr, rows);
  const at::Tensor a = activation_->forward(h);
  if (saved) saved->h = h;
  h.reset();
  return down_->forward(a, saved ? &saved->down : nullptr);
}

at::Tensor Mlp::backward_input(const at::Tensor& dy, Saved& saved) {
  return up_->backward_input(activation_backward(dy, saved), saved.up);
}

Pending Mlp::start_backward_input(const at::Tensor& dy, Saved& saved) {
  return up_->start_backward_input(activation_backward(dy, saved), saved.up);
}

at::Tensor Mlp::activation_backward(const at::Tensor& dy, Saved& saved) {
  return activation_->backward(down_->backward_input(dy, saved.down), std::exchange(saved.h, {}));
}

void Mlp::recompute(const at::Tensor& x, Saved& saved, int64_t rows) {
  saved.h = up_->forward(x, &saved.up, rows);
  saved.down.x = activation_->forward(saved.h);
}

void Mlp::forget(Saved& saved) {
  saved.up.x.reset();
  saved.down.x.reset();
}

void Mlp::restore(const at::Tensor& x, Saved& saved) {
  saved.up.x = x;
  saved.down.x = activation_->forward(saved.h);
}

void Mlp::backward_weight(Saved& saved) {
  down_->backward_weight(saved.down);
  up_->backward_weight(saved.up);
}

}  // namespace lockstep::nn
