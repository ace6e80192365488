// A state space written out token by token for autograd, in fp64; and branches of it, for tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/nn/state_space.h"
#include "support/tensors.h"

namespace lockstep::nn::testing {

inline constexpr double kNormEps = 1e-5;

// Where the documents of each sequence begin; none: each sequence is one.
using Documents = std::vector<std::vector<int32_t>>;

// [B, T] int32: by token where its document begins.
inline at::Tensor first_seen_of(const Documents& documents, int64_t batch, int64_t length) {
  at::Tensor first = at::zeros({batch, length}, at::kInt);
  for (size_t b = 0; b < documents.size(); ++b)
    for (const int32_t begin : documents[b]) first[static_cast<int64_t>(b)].narrow(0, begin, length - begin).fill_(begin);
  return first;
}

// Of one branch, by the names that a model has for them; d is "d_skip" here.
struct StateSpaceParameters {
  enum Of { kIn, kInBias, kConv, kConvBias, kDtBias, kALog, kD, kNorm, kOut, kOutBias, kCount };

  StateSpaceParameters(const arch::StateSpaceSizes& sizes, int64_t hidden, at::ScalarType dtype = at::kFloat) {
    using lockstep::testing::parameter;
    const int64_t heads = sizes.heads;
    all.resize(kCount);
    all[kIn] = parameter("in", {sizes.projected(), hidden}, 0.4, dtype);
    if (sizes.projection_bias) all[kInBias] = parameter("in bias", {sizes.projected()}, 0.2, dtype);
    all[kConv] = parameter("conv", {sizes.convolved(), sizes.convolution}, 0.5, dtype);
    if (sizes.convolution_bias) all[kConvBias] = parameter("conv bias", {sizes.convolved()}, 0.2, dtype);
    all[kDtBias] = parameter("dt bias", {heads}), all[kALog] = parameter("a log", {heads}, 0.5), all[kD] = parameter("d", {heads});
    if (sizes.norm_groups > 0) all[kNorm] = parameter("norm", {sizes.inner()}, 1, dtype);
    all[kOut] = parameter("out", {hidden, sizes.inner()}, 0.4, dtype);
    if (sizes.projection_bias) all[kOutBias] = parameter("out bias", {hidden}, 0.2, dtype);
  }
  std::vector<Parameter> all;  // undefined where the sizes have none
};

// The whole of it in one place, or in one of several that have parts of the sequences.
inline std::unique_ptr<StateSpace> state_space_of(const arch::StateSpaceSizes& sizes, const StateSpaceParameters& parameters,
                                                  std::unique_ptr<PieceExchange> pieces = nullptr) {
  using P = StateSpaceParameters;
  const auto& p = parameters.all;
  const int64_t columns = sizes.norm_groups > 0 ? sizes.inner() / sizes.norm_groups : 0;
  return std::make_unique<StateSpace>(
      StateSpace::Shape{.sizes = sizes, .heads = sizes.heads, .groups = sizes.groups, .first_group = 0, .read_groups = sizes.groups},
      StateSpace::Parts{.in = std::make_unique<Linear>(p[P::kIn], p[P::kInBias]),
                        .convolution = p[P::kConv],
                        .convolution_bias = p[P::kConvBias],
                        .dt_bias = p[P::kDtBias],
                        .a_log = p[P::kALog],
                        .d = p[P::kD],
                        .norm = std::make_unique<GatedNorm>(p[P::kNorm], sizes.norm_groups, columns, kNormEps, nullptr),
                        .out = std::make_unique<Linear>(p[P::kOut], p[P::kOutBias]),
                        .pieces = std::move(pieces)});
}

// Leaves of autograd with the values of the parameters, undefined ones as they are.
inline std::vector<at::Tensor> fp64_leaves(const StateSpaceParameters& parameters) {
  std::vector<at::Tensor> leaves;
  for (const Parameter& p : parameters.all)
    leaves.push_back(p.defined() ? p.value.to(at::kDouble, false, /*copy=*/true).requires_grad_(true) : at::Tensor());
  return leaves;
}

// x [B, T, D] fp64. From the equations alone.
inline at::Tensor state_space_reference(const at::Tensor& x, const std::vector<at::Tensor>& p, const arch::StateSpaceSizes& s,
                                        const at::Tensor& first_seen) {
  using P = StateSpaceParameters;
  const int64_t batch = x.size(0), length = x.size(1), inner = s.inner(), of_groups = s.groups * s.state;
  const at::Tensor projected = at::linear(x, p[P::kIn], p[P::kInBias]);
  const at::Tensor z = projected.narrow(2, 0, inner), xbc = projected.narrow(2, inner, s.convolved());
  const at::Tensor place = at::empty({length}, at::kInt);
  for (int64_t t = 0; t < length; ++t) place.data_ptr<int32_t>()[t] = static_cast<int32_t>(t);
  at::Tensor sum = p[P::kConvBias].defined() ? p[P::kConvBias] : at::zeros({s.convolved()}, x.options());
  for (int64_t w = 0; w < s.convolution && w < length; ++w) {  // the token w before
    const at::Tensor before = at::cat({at::zeros({batch, w, s.convolved()}, x.options()), xbc.narrow(1, 0, length - w)}, 1);
    sum = sum + before * (place - w).ge(first_seen).unsqueeze(2).to(at::kDouble) * p[P::kConv].select(1, s.convolution - 1 - w);
  }
  const at::Tensor convolved = at::silu(sum.expand({batch, length, s.convolved()}));
  const double most = s.step_most > 0 ? s.step_most : std::numeric_limits<double>::infinity();
  const at::Tensor delta = at::softplus(projected.narrow(2, inner + s.convolved(), s.heads) + p[P::kDtBias]).clamp(s.step_least, most);
  const auto of_heads = [&](int64_t begin) {
    return convolved.narrow(2, begin, of_groups).unflatten(2, {s.groups, s.state}).repeat_interleave(s.heads / s.groups, 2);
  };
  const at::Tensor channels = convolved.narrow(2, 0, inner).unflatten(2, {s.heads, s.head_size}), b = of_heads(inner), c = of_heads(inner + of_groups);
  const at::Tensor decay = (delta * p[P::kALog].exp().neg()).exp() * place.ne(first_seen).unsqueeze(2).to(at::kDouble);
  at::Tensor state = at::zeros({batch, s.heads, s.head_size, s.state}, x.options());
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < length; ++t) {
    const at::Tensor here = channels.select(1, t);
    state = state * decay.select(1, t).unsqueeze(2).unsqueeze(3) +
            (delta.select(1, t).unsqueeze(2) * here).unsqueeze(3) * b.select(1, t).unsqueeze(2);
    outputs.push_back((state * c.select(1, t).unsqueeze(2)).sum(3) + p[P::kD].unsqueeze(1) * here);
  }
  at::Tensor y = at::stack(outputs, 1).flatten(2) * at::silu(z);
  if (s.norm_groups > 0) {
    const at::Tensor groups = y.unflatten(2, {s.norm_groups, inner / s.norm_groups});
    y = (groups * (groups.pow(2).mean(3, /*keepdim=*/true) + kNormEps).rsqrt()).flatten(2) * p[P::kNorm];
  }
  return at::linear(y, p[P::kOut], p[P::kOutBias]);
}

}  // namespace lockstep::nn::testing
