#include "lockstep/nn/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/sum.h>

#include <utility>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {
namespace {

double rounded(double scale, at::ScalarType type) {
  if (type == at::kBFloat16) return static_cast<float>(c10::BFloat16(static_cast<float>(scale)));
  return static_cast<float>(scale);
}

}  // namespace

Embedding::Embedding(Parameter tokens, Parameter positions, Dropout dropout, double scale)
    : tokens_(std::move(tokens)),
      positions_(std::move(positions)),
      dropout_(std::move(dropout)),
      scale_(rounded(scale, tokens_.value.scalar_type())) {}

at::Tensor Embedding::words(const at::Tensor& tokens) const { return scaled(at::embedding(tokens_.value, tokens)); }

at::Tensor Embedding::embed(const at::Tensor& tokens, int64_t start) const {
  at::Tensor y = words(tokens);
  if (positions_.defined()) y.add_(positions_.value.narrow(0, start, tokens.size(1)));
  return y;
}

at::Tensor Embedding::embed(const at::Tensor& tokens, const at::Tensor& positions) const {
  at::Tensor y = words(tokens);
  if (positions_.defined()) y.add_(at::embedding(positions_.value, positions));
  return y;
}

at::Tensor Embedding::rows_of(const Microbatch& microbatch) const {
  return microbatch.places ? embed(microbatch.tokens, microbatch.places->positions) : embed(microbatch.tokens, 0);
}

at::Tensor Embedding::forward(const at::Tensor&, const Microbatch& microbatch, std::unique_ptr<Saved>* saved) {
  auto kept = std::make_unique<Kept>();
  kept->tokens = microbatch.tokens;
  kept->places = microbatch.places;
  at::Tensor y = dropout_.forward(rows_of(microbatch), microbatch, &kept->dropout);
  if (saved) *saved = std::move(kept);
  return y;
}

at::Tensor Embedding::backward_input(const at::Tensor& dy, Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  kept.dy = dropout_.backward(dy, kept.dropout);
  return {};
}

void Embedding::backward_weight(Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  const at::Tensor dy = flatten_rows(kept.dy);
  accumulate_rows(tokens_.grad, kept.tokens.reshape({-1}), scale_ == 1 ? dy : dy.mul(scale_));
  if (positions_.defined() && kept.places) {
    accumulate_rows(positions_.grad, kept.places->positions.reshape({-1}), flatten_rows(kept.dy));
  } else if (positions_.defined()) {
    positions_.grad.narrow(0, 0, kept.dy.size(1)).add_(at::sum(kept.dy, {0}, /*keepdim=*/false, at::kFloat));
  }
  kept.places.reset();
  kept.tokens.reset();
  kept.dy.reset();
}

}  // namespace lockstep::nn
