#include "lockstep/nn/head_norm.h"

#include <utility>

namespace lockstep::nn {
namespace {

// A copy even where x is contiguous: x itself is overwritten.
at::Tensor copy_of(const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

}  // namespace

HeadNorm::HeadNorm(Parameter q_weight, Parameter k_weight, double eps, bool plus_one)
    : q_(std::move(q_weight), eps, plus_one), k_(std::move(k_weight), eps, plus_one) {}

void HeadNorm::forward(const at::Tensor& q, const at::Tensor& k, Saved* saved) {
  q.copy_(q_.forward(copy_of(q), saved ? &saved->q : nullptr));
  k.copy_(k_.forward(copy_of(k), saved ? &saved->k : nullptr));
}

void HeadNorm::forget(const at::Tensor& q, const at::Tensor& k, Saved& saved) {
  q.copy_(saved.q.x);
  k.copy_(saved.k.x);
  saved = {};
}

void HeadNorm::backward_input(const at::Tensor& dq, const at::Tensor& dk, Saved& saved) {
  dq.copy_(q_.backward_input(copy_of(dq), saved.q));
  dk.copy_(k_.backward_input(copy_of(dk), saved.k));
}

void HeadNorm::backward_weight(Saved& saved) {
  q_.backward_weight(saved.q);
  k_.backward_weight(saved.k);
}

}  // namespace lockstep::nn
