// Routing on a device, here the CPU, against that of the host in random cases: choice, drops, places, loads, losses, gradients, rows and sums.
#include "lockstep/nn/device_routing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/device_router.h"
#include "lockstep/nn/device_rows.h"
#include "lockstep/nn/own_rows.h"
#include "lockstep/nn/router.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using config::Drop;
using config::Router;
using testing::expect_close;

struct Case {
  RoutingRules rules;
  int64_t sequences = 1, length = 1;
  at::Tensor logits{}, bias{};
  std::vector<double> last{};  // empty: capacity goes by the sequence
  int64_t rows() const { return sequences * length; }
};

// Few distinct values, so that there are ties in nearly every row.
at::Tensor coarse(std::mt19937& random, int64_t rows, int64_t columns) {
  at::Tensor values = at::empty({rows, columns}, at::kFloat);
  const int levels = std::uniform_int_distribution(1, 12)(random);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] = 0.5f * static_cast<float>(std::uniform_int_distribution(-levels, levels)(random));
  return values;
}

int64_t among(std::mt19937& random, int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random); }

Case random_case(std::mt19937& random) {
  const auto yes = [&] { return among(random, 0, 1) == 1; };
  Case c;
  c.rules.groups = yes() ? 1 : among(random, 1, 4);
  c.rules.experts = c.rules.groups * among(random, 1, 6);
  c.rules.top_groups = among(random, 1, c.rules.groups);
  const int64_t most = c.rules.experts / c.rules.groups * c.rules.top_groups;
  c.rules.per_token = yes() ? among(random, 1, most) : most;  // often all that there are
  c.rules.router = static_cast<Router>(among(random, 0, 2));
  c.rules.routed_scale = yes() ? 1 : 2.5;
  c.rules.drop = static_cast<Drop>(among(random, 0, 1));
  constexpr double kFactors[] = {0.25, 0.5, 1, 1.25, 2};
  if (yes()) c.rules.capacity_factor = kFactors[among(random, 0, 4)];
  c.sequences = among(random, 1, 3);
  c.length = among(random, 1, 9);
  c.logits = coarse(random, c.rows(), c.rules.experts);
  if (yes()) c.bias = coarse(random, 1, c.rules.experts).view({-1});
  if (c.bias.defined() && yes()) c.bias.select(0, among(random, 0, c.rules.experts - 1)).fill_(100);  // every token to this one
  if (c.rules.capacity_factor && among(random, 0, 2) == 0)
    for (int64_t e = 0; e < c.rules.experts; ++e) c.last.push_back(static_cast<double>(among(random, 0, 20)));
  return c;
}

// The host's assignments, with the device's weights from then on: what is kept may hang on their last bit.
std::vector<Assignment> expect_same_choice(const Case& c, const at::Tensor& scores, const DeviceChoice& choice) {
  std::vector<Assignment> all = choose_experts(scores, c.bias, c.rules);
  EXPECT_EQ(choice.expert.numel(), std::ssize(all));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(choice.expert.const_data_ptr<int64_t>()[i], all[i].expert) << "row " << all[i].row;
    EXPECT_NEAR(choice.weight.const_data_ptr<float>()[i], all[i].weight, 1e-5);
    all[i].weight = choice.weight.const_data_ptr<float>()[i];
  }
  return all;
}

at::Tensor expect_same_drops(const Case& c, const DeviceChoice& choice, std::vector<Assignment>& all) {
  if (!c.rules.capacity_factor) return {};
  if (c.last.empty())
    drop_beyond_capacity(all, c.rules, c.length);
  else
    drop_beyond_last_load(all, c.rules, c.length, c.last);
  const at::Tensor kept = c.last.empty() ? kept_by_capacity(choice, c.rules, c.length) : kept_by_last_load(choice, c.rules, c.length, c.last);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(kept.const_data_ptr<bool>()[i], all[i].kept) << i;
  return kept;
}

void expect_same_places(const Routing& host, const DeviceRouting& device) {
  ASSERT_EQ(device.slot.numel(), std::ssize(host.assignments));
  std::vector<int64_t> slots(host.assignments.size(), device.experts * device.room), next(host.counts.size(), 0);
  for (size_t place = 0; place < host.slots.size(); ++place) {
    const Assignment& a = host.assignments[static_cast<size_t>(host.slots[place])];
    slots[static_cast<size_t>(host.slots[place])] = a.expert * device.room + next[static_cast<size_t>(a.expert)]++;
  }
  for (size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(device.slot.const_data_ptr<int64_t>()[i], slots[i]) << i;
  for (size_t e = 0; e < host.routed.size(); ++e) {
    EXPECT_EQ(device.routed.const_data_ptr<int64_t>()[e], host.routed[e]);
    EXPECT_LE(host.counts[e], device.room);
  }
}

// What is known of all rows.
struct Chosen {
  at::Tensor scores;
  DeviceChoice choice;
  std::vector<Assignment> all;
};

void add_losses(const Case& c, const Chosen& known, const OwnRows& own, Routing& host, Routing& device, DeviceRouting& placed) {
  std::vector<double> valid;
  for (int64_t b = 0; b < c.sequences; ++b) valid.push_back(static_cast<double>(c.length - b % c.length));
  const auto& [scores, choice, all] = known;
  const at::Tensor logits = own.of(c.logits).contiguous(), probabilities = router_probabilities(scores, c.rules.router);
  const at::Tensor there = at::tensor(valid, at::kDouble);
  const LossTerms terms{.valid = there, .coefficient = 0.3, .length = c.length, .begin = host.begin, .parts = host.parts};
  expect_close(device_scores(c.logits, c.rules.router), scores, "scores");
  expect_close(device_probabilities(scores, c.rules.router), probabilities, "probabilities");
  DeviceLoss aux;
  if (c.last.empty()) {
    add_aux_loss(host, probabilities, all, valid, 0.3);
    aux = device_aux_loss(probabilities, choice.expert, terms);
  } else {
    const at::Tensor of_own = own.of(probabilities).contiguous();
    add_aux_loss_of_shares(host, of_own, c.last, valid, 0.3);
    aux = device_aux_loss_of_shares(of_own, c.last, terms);
  }
  add_z_loss(host, logits, valid, 0.3);
  const DeviceLoss z = device_z_loss(logits, terms);
  EXPECT_NEAR(aux.sum.item<double>(), host.aux_sum, 1e-6 * (1 + host.aux_sum));
  EXPECT_NEAR(z.sum.item<double>(), host.z_sum, 1e-5 * (1 + host.z_sum));
  expect_close(aux.slope, host.aux_slope, "slope of the auxiliary loss");
  expect_close(z.slope, host.z_slope, "slope of the z-loss");
  device.aux_slope = aux.slope, device.z_slope = z.slope;
  placed.aux_sum = aux.sum, placed.z_sum = z.sum;
}

// Rows there and back, and the gradients of weights and logits. D = 3.
void expect_same_passes(const Case& c, const OwnRows& rows, const Routing& host, const Routing& device) {
  const DeviceRouting& placed = *device.on_device;
  const int64_t own = placed.rows(), each = placed.per_token();
  const at::Tensor x = testing::random("x", {own, 3}), dy = testing::random("dy", {own, 3}), base = testing::random("base", {own, 3});
  const at::Tensor dropped = placed.kept.logical_not().view({own * each, 1});
  const at::Tensor sent = permute_rows(x, host), repeated = permute_rows(x, device).masked_fill(dropped, 0);
  const WeightedGradients of_host = sum_rows_backward(dy, sent, host), of_device = sum_rows_backward(dy, repeated, device);
  ASSERT_EQ(of_device.outputs.size(0), own * each);
  at::Tensor logits = rows.of(c.logits).clone(), expected = logits.clone();
  router_backward(expected, of_host.weights, host, c.rules);
  device_router_backward(logits, of_device.weights, device, c.rules);
  if (own == 0) return;
  expect_close(sum_rows(repeated, device, true), sum_rows(sent, host, true), "weighted sums");
  expect_close(sum_rows(repeated, device, false, base), sum_rows(sent, host, false, base), "sums");
  // Where all weights are constant the gradient may be nothing but rounding.
  const float largest = expected.abs().max().item<float>();
  EXPECT_LE(logits.sub(expected).abs().max().item<float>(), 3e-5f * std::max(1.0f, largest)) << "gradient of logits";
  for (size_t place = 0; place < host.slots.size(); ++place) {
    EXPECT_NEAR(of_device.weights[host.slots[place]].item<float>(), of_host.weights[static_cast<int64_t>(place)].item<float>(), 1e-4);
    EXPECT_TRUE(of_device.outputs[host.slots[place]].equal(of_host.outputs[static_cast<int64_t>(place)]));
  }
}

Chosen choose(const Case& c) {
  Chosen known;
  known.scores = router_scores(c.logits, c.rules.router);
  known.choice = choose_on_device(known.scores, c.bias, c.rules);
  known.all = expect_same_choice(c, known.scores, known.choice);
  return known;
}

// `range`: of the rows here, of which each sequence has 1 / parts.
void expect_same_routing(const Case& c, const Chosen& known, const at::Tensor& kept, const OwnRows& own, mesh::Range range, int64_t parts) {
  const int64_t room = most_of_expert(c.rules, range, c.length, c.rules.capacity_factor && c.last.empty(), parts);
  Routing host = own.sort(known.all, c.rules.experts), device;
  host.begin = device.begin = range.begin;
  host.length = device.length = c.length;
  host.parts = device.parts = parts;
  auto placed = std::make_shared<DeviceRouting>(place_in_slots({.expert = own.of(known.choice.expert), .weight = own.of(known.choice.weight)},
                                                               kept.defined() ? own.of(kept) : kept, {.begin = 0, .end = own.size()}, c.rules, room));
  expect_same_places(host, *placed);
  add_losses(c, known, own, host, device, *placed);
  device.on_device = placed;
  expect_same_passes(c, own, host, device);
}

TEST(DeviceRouting, IsThatOfTheHost) {
  std::mt19937 random(41);
  for (int i = 0; i < 600 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(cat("case ", i));
    const Case c = random_case(random);
    Chosen known = choose(c);
    const at::Tensor kept = expect_same_drops(c, known.choice, known.all);
    const int64_t rows = c.rows(), half = rows / 2;
    for (const auto& [begin, end] : {std::pair(int64_t{0}, rows), std::pair(half, rows), std::pair(half, half)}) {
      const mesh::Range range{.begin = begin, .end = end};
      expect_same_routing(c, known, kept, OwnRows(range), range, 1);
    }
  }
}

// As many tokens of each sequence in each part, drawn for each sequence.
TokenPlaces draw_part(std::mt19937& random, const Case& c, int64_t parts) {
  TokenPlaces places;
  places.length = c.length;
  const int64_t here = c.length / parts;
  places.index = at::empty({c.sequences, here}, at::kInt);
  for (int64_t b = 0; b < c.sequences; ++b) {
    std::vector<int32_t> all(static_cast<size_t>(c.length));
    std::iota(all.begin(), all.end(), 0);
    std::ranges::shuffle(all, random);
    std::ranges::sort(all.begin(), all.begin() + here);
    std::copy(all.begin(), all.begin() + here, places.index.data_ptr<int32_t>() + b * here);
  }
  return places;
}

TEST(DeviceRouting, IsThatOfTheHostWherePartsOfSequencesAreHere) {
  std::mt19937 random(43);
  for (int i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(cat("case ", i));
    Case c = random_case(random);
    const int64_t parts = among(random, 2, 3);
    c.length *= parts;
    c.logits = coarse(random, c.rows(), c.rules.experts);
    Chosen known = choose(c);
    const at::Tensor kept = expect_same_drops(c, known.choice, known.all);
    const TokenPlaces places = draw_part(random, c, parts);
    const int64_t rows = places.index.numel();
    for (const int64_t begin : {int64_t{0}, rows / 2, rows}) {
      const mesh::Range range{.begin = begin, .end = rows};
      expect_same_routing(c, known, kept, OwnRows(range, places, at::kCPU), range, parts);
    }
  }
}

// Rows 1 to 4 of two sequences of 6, of which tokens 1, 3, 5 and 0, 2, 4 are here: in whole sequences 3, 5 and 6, 8.
TEST(OwnRows, AreFoundInWholeSequences) {
  TokenPlaces places;
  places.length = 6;
  places.index = at::tensor({1, 3, 5, 0, 2, 4}, at::kInt).view({2, 3});
  const OwnRows own({.begin = 1, .end = 5}, places, at::kCPU);
  const at::Tensor all = at::arange(12, at::kFloat).view({12, 1});
  EXPECT_TRUE(own.of(all).view({-1}).equal(at::tensor({3, 5, 6, 8}, at::kFloat)));
  EXPECT_TRUE(own.copy_of(all).equal(own.of(all)));
  std::vector<Assignment> assignments;
  for (int64_t row = 0; row < 12; ++row) assignments.push_back({.row = row, .expert = row % 3, .weight = static_cast<float>(row), .kept = row != 6});
  const Routing routing = own.sort(assignments, 3);
  EXPECT_EQ(routing.routed, (std::vector<int64_t>{2, 0, 2}));
  EXPECT_EQ(routing.counts, (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(routing.rows, (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(routing.weights, (std::vector<float>{3, 5, 8}));
}

// 7 rows in sequences of 4 with 2 of an expert each: rows 2 to 6 are of two sequences, 4 to 6 of one.
TEST(DeviceRouting, RoomIsThatOfTheSequencesThatAreTouched) {
  RoutingRules rules{.experts = 4, .per_token = 2};
  rules.capacity_factor = 1;
  EXPECT_EQ(most_of_expert(rules, {.begin = 2, .end = 7}, 4, true), 4);
  EXPECT_EQ(most_of_expert(rules, {.begin = 4, .end = 7}, 4, true), 2);
  EXPECT_EQ(most_of_expert(rules, {.begin = 3, .end = 4}, 4, true), 1);
  EXPECT_EQ(most_of_expert(rules, {.begin = 4, .end = 4}, 4, true), 0);
  EXPECT_EQ(most_of_expert(rules, {.begin = 2, .end = 7}, 4, false), 5);
  // The same rows in halves of sequences of 8, each with 4 of an expert: all four may be here.
  EXPECT_EQ(most_of_expert(rules, {.begin = 4, .end = 7}, 8, true, 2), 3);
  EXPECT_EQ(most_of_expert(rules, {.begin = 0, .end = 8}, 8, true, 2), 8);
  rules.capacity_factor = 0.25;
  EXPECT_EQ(most_of_expert(rules, {.begin = 2, .end = 7}, 8, true, 2), 2);
}

}  // namespace
}  // namespace lockstep::nn
