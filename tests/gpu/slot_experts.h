// A layer of experts with messages of slots on one rank of two, its router on the device, and the same layer whole on the CPU, whose
// router is on the host.
#pragma once

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/experts.h"
#include "lockstep/parallel/expert/exchange.h"
#include "support/tensors.h"

namespace lockstep::testing {

struct SlotCase {
  std::string name;
  arch::ExpertSizes sizes{};
  config::MoeSection moe{.aux_coefficient = 0.3, .z_coefficient = 0.2};
  at::ScalarType dtype = at::kFloat;
  std::vector<float> bias{};
  std::vector<double> last{};  // loads of the step before; with them capacity and auxiliary loss go by these
};

constexpr int64_t kSlotBatch = 2, kSlotLength = 6, kSlotWidth = 16, kSlotInner = 8, kSlotExperts = 8;

inline SlotCase slot_case(std::string name, config::Router router, int64_t per_token = 2) {
  SlotCase c{.name = std::move(name)};
  c.sizes.count = kSlotExperts;
  c.sizes.per_token = per_token;
  c.sizes.ffn = kSlotInner;
  c.sizes.router = router;
  return c;
}

// M: what an expert may take of a rank's rows.
inline int64_t slots_of(const SlotCase& c) {
  constexpr int64_t kRows = kSlotBatch * kSlotLength;
  if (!c.moe.capacity_factor || !c.last.empty()) return kRows;
  return std::min(kRows, kSlotBatch * arch::expert_capacity(c.sizes, *c.moe.capacity_factor, kSlotLength));
}

// Values are those of the whole layer on every device and rank.
struct SlotLayer {
  SlotLayer(const SlotCase& c, at::Device device, mesh::Range here, std::shared_ptr<nn::ExpertExchange> exchange) : of(c), on(device) {
    parameters = {.router_weight = make("router", {kSlotExperts, kSlotWidth}, {.begin = 0, .end = kSlotExperts}),
                  .router_bias = {},
                  .gate_up = make("gate_up", {kSlotExperts * 2 * kSlotInner, kSlotWidth}, here),
                  .down = make("down", {kSlotExperts * kSlotWidth, kSlotInner}, here)};
    if (!c.bias.empty())
      parameters.router_bias = {.value = at::tensor(c.bias, at::kFloat).to(device),
                                .grad = at::zeros({kSlotExperts}, at::TensorOptions(device).dtype(at::kFloat))};
    experts = std::make_unique<nn::Experts>(nn::ExpertShape{.sizes = c.sizes, .moe = c.moe}, parameters, nullptr, std::move(exchange));
    if (!c.last.empty()) experts->set_last_loads(c.last);
  }

  nn::Parameter make(const char* name, at::IntArrayRef shape, mesh::Range here) const {
    const int64_t each = shape[0] / kSlotExperts;
    const at::Tensor value = random(name, shape, 0.4).to(of.dtype).narrow(0, here.begin * each, here.size() * each).clone().to(on);
    return {.value = value, .grad = at::zeros(value.sizes(), at::TensorOptions(on).dtype(at::kFloat))};
  }

  struct Input {
    at::Tensor x, dy, valid;
  };
  Input input(int rank) const {
    const auto rows = [&](const char* name) { return random(cat(name, rank), {kSlotBatch, kSlotLength, kSlotWidth}).to(of.dtype).to(on); };
    return {.x = rows("x"), .dy = rows("dy"), .valid = at::tensor(std::vector<double>{6, 4}, at::kDouble).to(on)};
  }

  // y and dx.
  std::pair<at::Tensor, at::Tensor> pass(const Input& with) const {
    const auto saved = experts->new_saved();
    const at::Tensor y = experts->forward(with.x, saved.get(), {.count = kSlotBatch, .length = kSlotLength, .valid = with.valid});
    const at::Tensor dx = experts->backward_input(with.dy, *saved);
    experts->backward_weight(*saved);
    return {y, dx};
  }

  const SlotCase of;
  const at::Device on;
  nn::ExpertParameters parameters;
  std::unique_ptr<nn::Experts> experts;
};

inline SlotLayer slot_layer_here(const SlotCase& c, parallel::ExpertGroup& group) {
  auto exchange = std::make_shared<parallel::ShardedExchange>(&group, nullptr, nullptr, program::named_call("block"), "experts");
  return {c, gpu_device(), group.experts_here(kSlotExperts), std::move(exchange)};
}

}  // namespace lockstep::testing
