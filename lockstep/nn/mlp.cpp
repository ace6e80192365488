#include "lockstep/nn/mlp.h"

#include <utility>

namespace lockstep::nn {

Mlp::Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation, std::unique_ptr<Linear> down)
    : up_(std::move(up)), activation_(std::move(activation)), down_(std::move(down)) {}

at::Tensor Mlp::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences&) {
  return forward_down(forward_up(x, saved), saved);
}

at::Tensor Mlp::forward_up(const at::Tensor& x, Branch::Saved* saved) {
  auto* kept = static_cast<Saved*>(saved);
  const at::Tensor h = up_->forward(x, kept ? &kept->up : nullptr);
  if (kept) kept->h = h;
  return activation_->forward(h);
}

at::Tensor Mlp::forward_down(const at::Tensor& inner, Branch::Saved* saved) {
  auto* kept = static_cast<Saved*>(saved);
  return down_->forward(inner, kept ? &kept->down : nullptr);
}

at::Tensor Mlp::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return backward_up(backward_down(dy, saved), saved);
}

Pending Mlp::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return start_backward_up(backward_down(dy, saved), saved);
}

at::Tensor Mlp::backward_down(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  return activation_->backward(down_->backward_input(dy, kept.down), std::exchange(kept.h, {}));
}

at::Tensor Mlp::backward_up(const at::Tensor& dh, Branch::Saved& saved) {
  return up_->backward_input(dh, static_cast<Saved&>(saved).up);
}

Pending Mlp::start_backward_up(const at::Tensor& dh, Branch::Saved& saved) {
  return up_->start_backward_input(dh, static_cast<Saved&>(saved).up);
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
