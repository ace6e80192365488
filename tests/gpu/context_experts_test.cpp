// Experts on GPUs whose routing stays there, of sequences whose tokens lie on two ranks of cp, against the CPU's layer with whole sequences.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/slot_experts.h"
#include "lockstep/config/fields.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::gpu_device;
using testing::kSlotBatch;
using testing::kSlotExperts;
using testing::kSlotLength;
using testing::slot_case;
using testing::SlotCase;
using testing::SlotLayer;

// Of sequence 0 rank 0 has both ends and rank 1 the middle, of sequence 1 they have every second token.
at::Tensor index_of(int rank) {
  static_assert(kSlotBatch == 2 && kSlotLength == 6);
  const std::vector<int32_t> of_ranks[] = {{0, 1, 5, 0, 2, 4}, {2, 3, 4, 1, 3, 5}};
  return at::tensor(of_ranks[rank], at::kInt).view({kSlotBatch, kSlotLength / 2});
}

TokenPlaces places_of(int rank) {
  TokenPlaces places;
  places.length = kSlotLength;
  places.rank = rank;
  places.index = index_of(rank);
  places.index_of_ranks = {index_of(0), index_of(1)};
  places.positions = places.index.to(at::kLong).to(gpu_device());
  places.first_seen = at::zeros(places.index.sizes(), at::kInt);
  return places;
}

at::Tensor tokens_here(const at::Tensor& whole, const TokenPlaces& places) {
  std::vector<at::Tensor> parts;
  for (int64_t b = 0; b < kSlotBatch; ++b) parts.push_back(whole[b].index_select(0, places.index[b].to(at::kLong)).unsqueeze(0));
  return at::cat(parts, 0);
}

void check(const SlotCase& c, comm::World& world) {
  const auto ep = world.all_ranks("ep"), cp = world.all_ranks("cp");
  parallel::ExpertGroup group(*ep, 2, 1, {.slots = testing::slots_of(c)});
  parallel::ContextGroup context(*cp, {});
  const mesh::Range here = group.experts_here(kSlotExperts), all{.begin = 0, .end = kSlotExperts};
  const SlotLayer layer(c, gpu_device(), here,
                        std::make_shared<parallel::ShardedExchange>(&group, nullptr, &context, program::named_call("block"), "experts"));
  const SlotLayer whole(c, at::kCPU, all, std::make_shared<ExpertExchange>());
  const SlotLayer::Input input = whole.input(0);
  const auto [expected_y, expected_dx] = whole.pass(input);

  const TokenPlaces places = places_of(world.rank());
  const Sequences sequences{.count = kSlotBatch, .length = kSlotLength / 2, .valid = input.valid.to(gpu_device()), .places = &places};
  const auto saved = layer.experts->new_saved();
  const at::Tensor y = layer.experts->forward(tokens_here(input.x, places).to(gpu_device()), saved.get(), sequences);
  const at::Tensor dx = layer.experts->backward_input(tokens_here(input.dy, places).to(gpu_device()), *saved);
  layer.experts->backward_weight(*saved);
  constexpr double kBound = 3e-5;
  expect_close(y.cpu(), tokens_here(expected_y, places), "y", kBound);
  expect_close(dx.cpu(), tokens_here(expected_dx, places), "dx", kBound);

  const auto summed = [&](at::Tensor values, const char* name) {
    cp->all_reduce(values, {.id = program::named_call(name)}).wait();
    return values;
  };
  expect_close(summed(at::tensor(layer.experts->take_loads(), at::kDouble), "loads"), at::tensor(whole.experts->take_loads(), at::kDouble), "loads", kBound);
  const ExpertParameters &p = layer.parameters, &q = whole.parameters;
  expect_close(summed(p.router_weight.grad.cpu(), "router"), q.router_weight.grad, "router", kBound);
  const auto part = [&](const Parameter& of) { return of.grad.chunk(2, 0)[static_cast<size_t>(here.begin / here.size())]; };
  expect_close(p.gate_up.grad.cpu(), part(q.gate_up), "gate and up", kBound);
  expect_close(p.down.grad.cpu(), part(q.down), "down", kBound);
}

std::vector<SlotCase> cases() {
  using config::Router;
  std::vector<SlotCase> cases = {slot_case("aux and z of softmax", Router::kSoftmax), slot_case("aux and z of sigmoid", Router::kSigmoid)};
  for (const config::Drop drop : {config::Drop::kProbability, config::Drop::kPosition}) {
    SlotCase& c = cases.emplace_back(slot_case(cat("drops ", config::name_of(drop)), Router::kSoftmaxAfterTopk));
    c.moe.capacity_factor = 0.5;
    c.moe.drop = drop;
  }
  SlotCase& late = cases.emplace_back(slot_case("the step before", Router::kSoftmax));
  late.moe.capacity_factor = 0.75;
  late.moe.scope = config::MoeScope::kLastStep;
  late.last = {1, 20, 3, 8, 0, 5, 11, 2};
  return cases;
}

TEST(ContextExpertsOnTheGpu, AreThoseOfWholeSequences) {
  for (const SlotCase& c : cases())
    testing::run_ranks(2, [&](comm::World& world) {
      SCOPED_TRACE(c.name);
      check(c, world);
    });
}

}  // namespace
}  // namespace lockstep::nn
