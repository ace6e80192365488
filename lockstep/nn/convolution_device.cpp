#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/nn/state_space_device.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

// R = B * pieces pieces of L tokens; everything fp32.
struct Columns {
  explicit Columns(const Convolution& of)
      : rows(of.x.size(0) * of.pieces), length(of.x.size(1) / of.pieces), channels(of.x.size(2)), width(of.weight.size(1)) {
    const at::Tensor own = cut(of.x);
    const at::Tensor before = of.before.defined() ? of.before.to(at::kFloat).view({rows, width - 1, channels})
                                                  : at::zeros({rows, width - 1, channels}, own.options());
    all = at::cat({before, own}, 1);
    weight = of.weight.to(at::kFloat);
    std::vector<int32_t> taps(static_cast<size_t>(rows * length));
    for (int64_t i = 0, seen = 0; i < rows * length; ++i) {
      if (i % length == 0) seen = width - 1;
      seen = of.begins.defined() && of.begins.const_data_ptr<uint8_t>()[i] ? 1 : std::min(seen + 1, width);
      taps[static_cast<size_t>(i)] = static_cast<int32_t>(seen);
    }
    seen = upload(std::span<const int32_t>(taps), of.x.device()).view({rows, length, 1});
    sums = at::zeros(own.sizes(), own.options());
    if (of.bias.defined()) sums += of.bias;
    for (int64_t w = 0; w < width; ++w) sums += visible(all.narrow(1, w, length), w) * weight.select(1, w);
  }
  at::Tensor cut(const at::Tensor& x) const { return x.to(at::kFloat).reshape({rows, length, channels}); }
  // Zero where a token does not see its column w.
  at::Tensor visible(const at::Tensor& x, int64_t w) const { return x.masked_fill(seen.lt(static_cast<int64_t>(width - w)), 0); }
  at::Tensor dsums(const at::Tensor& dy) const {
    const at::Tensor open = at::sigmoid(sums);
    return cut(dy) * (open + sums * open * (1 - open));
  }

  int64_t rows, length, channels, width;
  at::Tensor all;     // [R, W - 1 + L, C]
  at::Tensor weight;  // [C, W]
  at::Tensor seen;    // [R, L, 1]: how many of the last W columns a token sees, itself among them
  at::Tensor sums;    // [R, L, C]: before silu
};

}  // namespace

at::Tensor convolve_device(const Convolution& of) {
  const Columns columns(of);
  return (columns.sums * at::sigmoid(columns.sums)).view(of.x.sizes()).to(of.x.scalar_type());
}

void convolve_backward_input_device(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients) {
  const Columns columns(of);
  const at::Tensor dsums = columns.dsums(dy), dall = at::zeros(columns.all.sizes(), columns.all.options());
  for (int64_t w = 0; w < columns.width; ++w)
    dall.narrow(1, w, columns.length).add_(columns.visible(dsums * columns.weight.select(1, w), w));
  gradients.dx.copy_(dall.narrow(1, columns.width - 1, columns.length).reshape(of.x.sizes()));
  if (gradients.dbefore.defined()) gradients.dbefore.copy_(dall.narrow(1, 0, columns.width - 1).reshape(gradients.dbefore.sizes()));
}

void convolve_backward_weight_device(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias) {
  const Columns columns(of);
  const at::Tensor dsums = columns.dsums(dy);
  for (int64_t w = 0; w < columns.width; ++w)
    dweight.select(1, w).add_((columns.visible(columns.all.narrow(1, w, columns.length), w) * dsums).sum({0, 1}));
  if (dbias.defined()) dbias.add_(dsums.sum({0, 1}));
}

}  // namespace lockstep::nn
