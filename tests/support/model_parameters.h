// All parameters of a model in memory, or a tp rank's pieces of them: values and gradients, with the names and fusions of
// arch::param_table.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/random.h"
#include "lockstep/model/model.h"
#include "lockstep/nn/layer.h"

namespace lockstep::testing {

class ModelParameters : public nn::ParameterSource {
 public:
  ModelParameters(const arch::ModelConfig& model, uint64_t seed, at::ScalarType dtype = at::kFloat,
                  const arch::TensorShard& shard = {}, at::Device device = at::kCPU)
      : table_(arch::param_table(model, shard)), device_(device) {
    for (size_t i = 0; i < table_.size(); ++i) {
      const bool first_of_fused = !table_[i].fuse.empty() && !parameters_.contains(table_[i].fuse);
      if (first_of_fused) add_fused(i, dtype);
      if (table_[i].fuse.empty()) parameters_[table_[i].name] = allocate(table_[i].local_shape, dtype);
      fill(table_[i], seed);
    }
  }

  nn::Parameter parameter(std::string_view name) override {
    const auto found = parameters_.find(name);
    LOCKSTEP_CHECK(found != parameters_.end(), "no parameter ", name);
    return found->second;
  }

  const std::vector<arch::ParamSpec>& table() const { return table_; }

  void zero_gradients() {
    for (const auto& [name, parameter] : parameters_) parameter.grad.zero_();
  }

 private:
  nn::Parameter allocate(const std::vector<int64_t>& shape, at::ScalarType dtype) const {
    const auto options = at::TensorOptions().device(device_);
    return {.value = at::empty(shape, options.dtype(dtype)), .grad = at::zeros(shape, options.dtype(at::kFloat))};
  }

  // Rows of one fused matrix stand one after the other in the table.
  void add_fused(size_t first, at::ScalarType dtype) {
    std::vector<int64_t> shape = table_[first].local_shape;
    shape[0] = 0;
    for (size_t i = first; i < table_.size() && table_[i].fuse == table_[first].fuse; ++i)
      shape[0] += table_[i].local_shape[0];
    const nn::Parameter whole = parameters_[table_[first].fuse] = allocate(shape, dtype);
    int64_t row = 0;
    for (size_t i = first; i < table_.size() && table_[i].fuse == table_[first].fuse; ++i) {
      const int64_t rows = table_[i].local_shape[0];
      parameters_[table_[i].name] = {.value = whole.value.narrow(0, row, rows),
                                     .grad = whole.grad.narrow(0, row, rows)};
      row += rows;
    }
  }

  void fill(const arch::ParamSpec& spec, uint64_t seed) {
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    model::initial_values(spec, seed, 0,
                          std::span<float>(values.data_ptr<float>(), static_cast<size_t>(values.numel())));
    for (size_t dim = 0; dim < spec.shape.size(); ++dim)
      values = values.narrow(static_cast<int64_t>(dim), spec.local_offset[dim], spec.local_shape[dim]);
    parameters_.at(spec.name).value.copy_(values);
  }

  std::vector<arch::ParamSpec> table_;
  at::Device device_;
  std::map<std::string, nn::Parameter, std::less<>> parameters_;  // fused names and the names of their rows
};

// Random tokens and targets of [B, S], one target in `ignore_every` not counted (0 = all counted).
inline nn::Microbatch random_microbatch(const arch::ModelConfig& model, int64_t batch, int64_t seq,
                                        int64_t ignore_every = 0, std::string_view name = "tokens") {
  nn::Microbatch m{.tokens = at::empty({batch, seq}, at::kLong), .targets = at::empty({batch, seq}, at::kLong)};
  const RandomStream stream(3, name);
  const auto token = [&](int64_t index) {
    return static_cast<int64_t>(stream.bits(static_cast<uint64_t>(index)) % static_cast<uint64_t>(model.vocab_size));
  };
  for (int64_t i = 0; i < batch * seq; ++i) {
    const bool ignored = ignore_every > 0 && i % ignore_every == 1;
    m.tokens.data_ptr<int64_t>()[i] = token(i);
    m.targets.data_ptr<int64_t>()[i] = ignored ? -100 : token(i + (int64_t{1} << 32));
  }
  return m;
}

// One forward and backward of all layers; gradients add up in the parameters. Returns the sum of the losses.
inline double forward_backward(const std::vector<std::unique_ptr<nn::Layer>>& layers,
                               const nn::Microbatch& microbatch) {
  std::vector<std::unique_ptr<nn::Saved>> saved(layers.size());
  at::Tensor x;
  for (size_t i = 0; i < layers.size(); ++i) x = layers[i]->forward(x, microbatch, &saved[i]);
  double loss = 0;
  at::Tensor dy;
  for (size_t i = layers.size(); i-- > 0;) {
    dy = layers[i]->backward_input(dy, *saved[i]);
    if (saved[i]->loss.defined()) loss = saved[i]->loss.item<double>();
    layers[i]->backward_weight(*saved[i]);
    saved[i].reset();
  }
  return loss;
}

}  // namespace lockstep::testing
