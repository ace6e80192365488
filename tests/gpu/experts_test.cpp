// Experts on the GPU against the same on the CPU, which nn.experts_test compares with autograd: products of groups, the copies of the
// routing between host and device, the routing on the device alone, and where a pass waits for the device.
#include "lockstep/nn/experts.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/slot_experts.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/nn/grouped.h"
#include "lockstep/nn/grouped_gpu.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::gpu_device;
using testing::random;

struct GroupCase {
  at::ScalarType dtype = at::kFloat;
  int64_t depth = 16, columns = 24;
  GroupForm form = GroupForm::kLoop;  // of a GPU that multiplies groups in one call
  double bound = 1e-5;
};
const std::vector<GroupCase> kGroupCases = {
    {},
    {.dtype = at::kBFloat16, .form = GroupForm::kOneCall, .bound = 0.02},
    {.dtype = at::kBFloat16, .depth = 12, .bound = 0.02},
    {.dtype = at::kBFloat16, .columns = 20, .bound = 0.02},
};

TEST(ExpertsOnTheGpu, ProductsOfGroupsWaitForNothing) {
  const std::vector<int64_t> sizes = {5, 0, 1, 30, 0};
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), groups = std::ssize(sizes);
  for (const GroupCase& c : kGroupCases) {
    SCOPED_TRACE(cat(c10::toString(c.dtype), " ", c.depth, " to ", c.columns));
    const at::Tensor weight = random("w", {groups, c.columns, c.depth}).to(c.dtype), grad = random("grad", {groups, c.columns, c.depth});
    const at::Tensor x = random("x", {rows, c.depth}).to(c.dtype), dy = random("dy", {rows, c.columns}).to(c.dtype);
    const auto there = [](const at::Tensor& tensor) { return tensor.to(gpu_device()); };
    const at::Tensor gpu_weight = there(weight), gpu_grad = there(grad), gpu_x = there(x), gpu_dy = there(dy);
#ifndef LOCKSTEP_ON_CUDA
    EXPECT_EQ(group_form(gpu_x, gpu_weight), c.form);
#endif
    testing::SynchronisationCounter waits;
    const at::Tensor y = grouped_multiply(gpu_x, gpu_weight, sizes), dx = grouped_multiply_input(gpu_dy, gpu_weight, sizes);
    accumulate_grouped(gpu_dy, gpu_x, sizes, gpu_grad);
    EXPECT_EQ(waits.take(), (std::map<std::string, int64_t>()));
    expect_close(y.cpu(), grouped_multiply(x, weight, sizes), "y", c.bound);
    expect_close(dx.cpu(), grouped_multiply_input(dy, weight, sizes), "dx", c.bound);
    accumulate_grouped(dy, x, sizes, grad);
    expect_close(gpu_grad.cpu(), grad, "gradient", c.bound);
  }
}

constexpr int64_t kBatch = 2, kLength = 6, kWidth = 16, kInner = 8, kCount = 8;

struct Case {
  config::Router router = config::Router::kSoftmaxAfterTopk;
  at::ScalarType dtype = at::kFloat;
  config::MoeSection moe{.aux_coefficient = 0.3, .z_coefficient = 0.2};
};

// One rank's experts with the same values on every device, and what a pass leaves on the CPU.
struct Layer {
  explicit Layer(const Case& c, at::Device device) {
    const auto make = [&](std::string_view name, at::IntArrayRef shape) -> Parameter {
      return {.value = random(name, shape, 0.4).to(c.dtype).to(device),
              .grad = at::zeros(shape, at::TensorOptions(device).dtype(at::kFloat))};
    };
    parameters = {.router_weight = make("router", {kCount, kWidth}),
                  .router_bias = {},
                  .gate_up = make("gate_up", {kCount * 2 * kInner, kWidth}),
                  .down = make("down", {kCount * kWidth, kInner})};
    arch::ExpertSizes sizes;
    sizes.count = kCount;
    sizes.per_token = 2;
    sizes.ffn = kInner;
    sizes.router = c.router;
    experts = std::make_unique<Experts>(ExpertShape{.sizes = sizes, .moe = c.moe}, parameters, nullptr, std::make_shared<ExpertExchange>());
  }

  ExpertParameters parameters;
  std::unique_ptr<Experts> experts;
};

// y, dx and the gradients of a layer whose input is the same to the bit on both devices, so that bf16 chooses the same experts.
std::vector<std::pair<const char*, at::Tensor>> pass(const Case& c, at::Device device) {
  const Layer layer(c, device);
  const auto input = [&](std::string_view name) { return random(name, {kBatch, kLength, kWidth}).to(c.dtype).to(device); };
  const at::Tensor valid = at::tensor(std::vector<double>{6, 4}, at::kDouble).to(device);
  const auto saved = layer.experts->new_saved();
  const at::Tensor y = layer.experts->forward(input("x"), saved.get(), {.count = kBatch, .length = kLength, .valid = valid});
  const at::Tensor dx = layer.experts->backward_input(input("dy"), *saved);
  layer.experts->backward_weight(*saved);
  const ExpertParameters& p = layer.parameters;
  return {{"y", y.cpu()}, {"dx", dx.cpu()}, {"router", p.router_weight.grad.cpu()}, {"gate and up", p.gate_up.grad.cpu()},
          {"down", p.down.grad.cpu()}, {"loads", at::tensor(layer.experts->take_loads(), at::kDouble)}};
}

TEST(ExpertsOnTheGpu, AreThoseOfTheCpu) {
  using config::Router;
  config::MoeSection capacity{.aux_coefficient = 0.3, .z_coefficient = 0.2};
  capacity.capacity_factor = 0.5;
  std::vector<Case> cases = {{.router = Router::kSoftmax, .moe = capacity}};
  for (const Router router : {Router::kSoftmax, Router::kSoftmaxAfterTopk, Router::kSigmoid, Router::kExpertChoice})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) cases.push_back({.router = router, .dtype = dtype});
  for (const Case& c : cases) {
    SCOPED_TRACE(cat(config::name_of(c.router), " ", c10::toString(c.dtype)));
    const auto expected = pass(c, at::kCPU), actual = pass(c, gpu_device());
    for (size_t i = 0; i < expected.size(); ++i)
      expect_close(actual[i].second, expected[i].second, expected[i].first, c.dtype == at::kFloat ? 2e-5 : 0.03);
  }
}

using testing::slot_case;
using testing::SlotCase;
using testing::SlotLayer;

std::vector<SlotCase> slot_cases() {
  using config::Router;
  std::vector<SlotCase> cases = {slot_case("softmax", Router::kSoftmax), slot_case("logits", Router::kSoftmaxAfterTopk),
                                 slot_case("sigmoid", Router::kSigmoid)};
  for (SlotCase c : {cases[1], cases[2]}) {
    c.dtype = at::kBFloat16;
    c.name += " bf16";
    cases.push_back(c);
  }
  for (const config::Drop drop : {config::Drop::kProbability, config::Drop::kPosition}) {
    SlotCase& c = cases.emplace_back(slot_case(cat("drops ", config::name_of(drop)), Router::kSoftmaxAfterTopk));
    c.moe.capacity_factor = 0.5;
    c.moe.drop = drop;
  }
  SlotCase& groups = cases.emplace_back(slot_case("groups", Router::kSigmoid, 3));
  groups.sizes.groups = 4, groups.sizes.top_groups = 2, groups.sizes.routed_scale = 2.5;
  SlotCase& one = cases.emplace_back(slot_case("all to one, with a bias", Router::kSigmoid, 1));
  one.moe.balance = config::Balance::kBias;
  one.bias = {0, 0, 0, 50, 0, 0, 0, 0};
  cases.push_back(slot_case("every expert", Router::kSoftmax, testing::kSlotExperts));
  SlotCase& late = cases.emplace_back(slot_case("the step before", Router::kSoftmax));
  late.moe.capacity_factor = 0.75;
  late.moe.scope = config::MoeScope::kLastStep;
  late.last = {1, 20, 3, 8, 0, 5, 11, 2};
  return cases;
}

// The host's layer with the tokens of this rank alone has its outputs, loads and gradients of the router; with those of both, the experts'.
void check_slots(const SlotCase& c, comm::Communicator& communicator) {
  parallel::ExpertGroup group(communicator, 2, 1, {.slots = testing::slots_of(c)});
  const mesh::Range here = group.experts_here(testing::kSlotExperts), all{.begin = 0, .end = testing::kSlotExperts};
  const SlotLayer layer = testing::slot_layer_here(c, group);
  const SlotLayer alone(c, at::kCPU, all, std::make_shared<ExpertExchange>()), both(c, at::kCPU, all, std::make_shared<ExpertExchange>());
  const double bound = c.dtype == at::kFloat ? 3e-5 : 0.03;
  for (int rank = 0; rank < 2; ++rank) both.pass(both.input(rank));
  const auto [y, dx] = layer.pass(layer.input(group.rank()));
  const auto [expected_y, expected_dx] = alone.pass(alone.input(group.rank()));
  expect_close(y.cpu(), expected_y, "y", bound);
  expect_close(dx.cpu(), expected_dx, "dx", bound);
  const auto loads_of = [](const SlotLayer& of) { return at::tensor(of.experts->take_loads(), at::kDouble); };
  expect_close(loads_of(layer), loads_of(alone), "loads", bound);
  EXPECT_EQ(loads_of(layer).abs().sum().item<double>(), 0) << "loads are told once";
  const auto gradient = [](const Parameter& parameter) { return parameter.grad.cpu(); };
  const ExpertParameters &p = layer.parameters, &q = alone.parameters, &w = both.parameters;
  expect_close(gradient(p.router_weight), gradient(q.router_weight), "router", bound);
  if (p.router_bias.defined()) expect_close(gradient(p.router_bias), gradient(q.router_bias), "bias", 0);
  const auto part = [&](const Parameter& whole) { return gradient(whole).chunk(2, 0)[static_cast<size_t>(here.begin / here.size())]; };
  expect_close(gradient(p.gate_up), part(w.gate_up), "gate and up", bound);
  expect_close(gradient(p.down), part(w.down), "down", bound);
}

TEST(ExpertsOnTheGpu, ThatRouteThereAreThoseOfTheHost) {
  for (const SlotCase& c : slot_cases())
    testing::run_ranks(2, [&](comm::World& world) {
      SCOPED_TRACE(c.name);
      check_slots(c, *world.all_ranks("ep"));
    });
}

}  // namespace
}  // namespace lockstep::nn
