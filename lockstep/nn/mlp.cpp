#include "lockstep/nn/mlp.h"

#include <utility>

namespace lockstep::nn {

Mlp::Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation, std::unique_ptr<Linear> down)
    : up_(std::move(up)), activation_(std::move(activation)), down_(std::move(down)) {}

at::Tensor Mlp::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences&) {
  auto* kept = static_cast<Saved*>(saved);
  at::Tensor h = up_->forward(x, kept ? &kept->up : nullptr);
  const at::Tensor a = activation_->forward(h);
  if (kept) kept->h = h;
  h.reset();
  return down_->forward(a, kept ? &kept->down : nullptr);
}

at::Tensor Mlp::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return up_->backward_input(activation_backward(dy, kept), kept.up);
}

Pending Mlp::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return up_->start_backward_input(activation_backward(dy, kept), kept.up);
}

at::Tensor Mlp::activation_backward(const at::Tensor& dy, Saved& saved) {
  return activation_->backward(down_->backward_input(dy, saved.down), std::exchange(saved.h, {}));
}

void Mlp::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences&) {
  auto& kept = static_cast<Saved&>(saved);
  kept.h = up_->forward(x, &kept.up);
  kept.down.x = activation_->forward(kept.h);
}

void Mlp::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.up.x.reset();
  kept.down.x.reset();
}

void Mlp::restore(const at::Tensor& x, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.up.x = x;
  kept.down.x = activation_->forward(kept.h);
}

void Mlp::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  down_->backward_weight(kept.down);
  up_->backward_weight(kept.up);
}

}  // namespace lockstep::nn
