// What the CUDA kernels of nn/cuda compute for one element or one pair of partial sums, as plain functions: the kernels
// call them on the GPU, cuda_math_test.cpp on the CPU, against autograd. All in fp32.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/base/host_device.h"

namespace lockstep::nn::cuda {

// Neither infinite nor a NaN, which compares with nothing.
LOCKSTEP_BOTH bool is_finite(float x) { return fabsf(x) < INFINITY; }

LOCKSTEP_BOTH float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// GELU by its tanh form: x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
LOCKSTEP_BOTH float gelu_backward(float dy, float x) {
  constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const float s = sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x));
  return dy * (s + x * s * (1.0f - s) * kTwiceRoot * (1.0f + 3.0f * kCubic * x * x));
}

struct Pair {
  float first, second;
};

LOCKSTEP_BOTH float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

// The gradients of gate and up.
LOCKSTEP_BOTH Pair swiglu_backward(float dy, float gate, float up) {
  const float s = sigmoid(gate);
  return {dy * up * (s + gate * s * (1.0f - s)), dy * gate * s};
}

// Elements j and j + K/2 of a head, turned by an angle; by its negative with -sine.
LOCKSTEP_BOTH Pair rotate(Pair x, float cosine, float sine) {
  return {x.first * cosine - x.second * sine, x.second * cosine + x.first * sine};
}

// RMSNorm is LayerNorm with mean 0 and, in backward, without the mean of g.
// g = dy * weight; mean_g and mean_gx: of g and of g * xhat over the row, xhat = (x - mean) * rstd.
LOCKSTEP_BOTH float norm_backward(float g, float xhat, float rstd, float mean_g, float mean_gx) {
  return rstd * (g - mean_g - xhat * mean_gx);
}

// The sum of e^(x - most) over some elements of a row and their maximum, in one pass (Milakov and Gimelshein, Online
// normalizer calculation for softmax, 2018). None so far: {-infinity, 0}.
struct SoftmaxSum {
  float most;
  float sum;
};

LOCKSTEP_BOTH SoftmaxSum merge(SoftmaxSum a, SoftmaxSum b) {
  if (a.sum == 0.0f) return b;  // nothing in it; -infinity minus itself is no number
  if (b.sum == 0.0f) return a;
  const bool first = a.most >= b.most;
  const float most = first ? a.most : b.most;
  // A NaN compares as smaller, and comes through the exponent.
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

// An element of minus infinity adds nothing: e^x is 0 whatever the maximum.
LOCKSTEP_BOTH SoftmaxSum of_element(float x) { return {x, x == -INFINITY ? 0.0f : 1.0f}; }

// `count` more elements, with one exponential each.
LOCKSTEP_BOTH SoftmaxSum include(SoftmaxSum row, const float* x, int count) {
  float most = row.most;
  for (int i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
  if (most == -INFINITY) {  // nothing but minus infinity, or a NaN
    for (int i = 0; i < count; ++i) row = merge(row, of_element(x[i]));
    return row;
  }
  float sum = row.sum * expf(row.most - most);
  for (int i = 0; i < count; ++i) sum += expf(x[i] - most);
  return {most, sum};
}

LOCKSTEP_BOTH float softmax(float x, SoftmaxSum row) { return expf(x - row.most) / row.sum; }
LOCKSTEP_BOTH float cross_entropy(float of_target, SoftmaxSum row) { return row.most + logf(row.sum) - of_target; }

// What all elements of an AdamW step share.
struct AdamWStep {
  float lr, eps;
  // Of the decays as they are written, each rounded by itself: 1 less a rounded 0.999 is off by many times its last digit.
  float take1;         // 1 - beta1
  float keep2, take2;  // beta2, 1 - beta2
  float weight_decay;  // 0 for parameters that do not decay
  float bias1;         // 1 - beta1^step
  float root_bias2;    // sqrt(1 - beta2^step)
};
struct AdamWElement {
  float value, exp_avg, exp_avg_sq;
};

// `grad` as the update uses it: with clipping and the count of tokens in.
LOCKSTEP_BOTH AdamWElement adamw(AdamWElement old, float grad, const AdamWStep& step) {
  const float decayed = old.value - step.lr * step.weight_decay * old.value;
  const float m = old.exp_avg + (grad - old.exp_avg) * step.take1;
  const float v = old.exp_avg_sq * step.keep2 + grad * grad * step.take2;
  return {decayed - step.lr / step.bias1 * m / (sqrtf(v) / step.root_bias2 + step.eps), m, v};
}

}  // namespace lockstep::nn::cuda
