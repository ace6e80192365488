// Experts of sequences whose tokens lie on several ranks of cp, beside tp and ep, against the same layer on one rank with whole sequences:
// outputs, gradients, losses and loads. A rank drops, weighs and judges as if it had all tokens.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/experts.h"
#include "lockstep/parallel/expert/exchange.h"
#include "lockstep/parallel/expert/sequence_order.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::Router;
using lockstep::testing::expect_close;
using lockstep::testing::parameter;
using lockstep::testing::random;

constexpr int64_t kExperts = 4, kModel = 6, kInner = 8, kBatch = 3, kSeq = 16;

// Of sequence 0 each of n ranks has the r-th and the r-th from the end of 2 n pieces; of the others tokens as they are drawn.
std::vector<std::vector<int32_t>> places_of(int64_t sequence, int ranks) {
  const int64_t each = kSeq / ranks, piece = each / 2;
  std::vector<int32_t> all(kSeq);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int32_t>> places(static_cast<size_t>(ranks));
  if (sequence == 0) {
    for (const int32_t place : all) {
      const int64_t of = place / piece;
      places[static_cast<size_t>(of < ranks ? of : 2 * ranks - 1 - of)].push_back(place);
    }
    return places;
  }
  const RandomStream stream(static_cast<uint64_t>(sequence), "places");
  std::ranges::sort(all, {}, [&](int32_t place) { return stream.bits(static_cast<uint64_t>(place)); });
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const auto begin = all.begin() + static_cast<int64_t>(rank) * each;
    places[rank].assign(begin, begin + each);
    std::ranges::sort(places[rank]);
  }
  return places;
}

nn::TokenPlaces token_places(int ranks, int rank) {
  nn::TokenPlaces places;
  places.length = kSeq;
  places.rank = rank;
  places.plain = true;
  const int64_t here = kSeq / ranks;
  for (int of = 0; of < ranks; ++of) {
    const at::Tensor& index = places.index_of_ranks.emplace_back(at::empty({kBatch, here}, at::kInt));
    for (int64_t b = 0; b < kBatch; ++b) std::ranges::copy(places_of(b, ranks)[static_cast<size_t>(of)], index.mutable_data_ptr<int32_t>() + b * here);
  }
  places.index = places.index_of_ranks[static_cast<size_t>(rank)];
  places.positions = places.index.to(at::kLong);
  places.first_seen = at::zeros({kBatch, here}, at::kInt);
  return places;
}

// whole [B, S, D] -> the tokens that are here, [B, S / cp, D].
at::Tensor tokens_here(const at::Tensor& whole, const nn::TokenPlaces& places) {
  const at::Tensor here = at::empty({kBatch, places.index.size(1), whole.size(2)}, whole.options());
  for (int64_t b = 0; b < kBatch; ++b) here[b].copy_(whole[b].index_select(0, places.positions[b]));
  return here;
}

TEST(SequenceOrder, PutsTheRowsOfEveryRankInTheirPlaces) {
  for (const int ranks : {1, 2, 4}) {
    const at::Tensor whole = random("scores", {kBatch, kSeq, kExperts});
    const at::Tensor parts = at::empty({ranks, kBatch * kSeq / ranks, kExperts});
    for (int rank = 0; rank < ranks; ++rank) parts[rank].copy_(tokens_here(whole, token_places(ranks, rank)).view({-1, kExperts}));
    EXPECT_TRUE(at::equal(in_order_of_sequences(parts, token_places(ranks, 0)), whole.view({-1, kExperts}))) << ranks << " ranks";
  }
}

struct Case {
  std::string name;
  Router router = Router::kSoftmax;
  config::MoeSection moe{};
  std::vector<double> last{};
  std::vector<float> bias{};
  int64_t slots = 0;
  bool gathers = true;  // scores over cp
};

config::MoeSection section(config::Drop drop) {
  config::MoeSection moe{.aux_coefficient = 0.3, .z_coefficient = 0.2};
  moe.capacity_factor = 0.5;
  moe.drop = drop;
  return moe;
}

// `moe` changed by `change`.
config::MoeSection with(config::MoeSection moe, const std::function<void(config::MoeSection&)>& change) {
  change(moe);
  return moe;
}
void no_capacity(config::MoeSection& moe) { moe.capacity_factor.reset(); }
void by_last_step(config::MoeSection& moe) { moe.scope = config::MoeScope::kLastStep; }
void by_bias(config::MoeSection& moe) { moe.balance = config::Balance::kBias, moe.capacity_factor.reset(); }

std::vector<Case> cases() {
  using config::Drop;
  const config::MoeSection probability = section(Drop::kProbability), position = section(Drop::kPosition);
  return {{.name = "softmax, drop by probability", .router = Router::kSoftmax, .moe = probability},
          {.name = "softmax, drop by position", .router = Router::kSoftmax, .moe = position},
          {.name = "logits, drop by probability", .router = Router::kSoftmaxAfterTopk, .moe = probability},
          {.name = "sigmoid, drop by position", .router = Router::kSigmoid, .moe = position},
          {.name = "sigmoid, aux alone", .router = Router::kSigmoid, .moe = with(probability, no_capacity)},
          {.name = "expert choice", .router = Router::kExpertChoice, .moe = probability},
          {.name = "messages of slots", .router = Router::kSoftmax, .moe = probability, .slots = kBatch * kSeq},
          {.name = "drop by the last load", .router = Router::kSigmoid, .moe = with(position, by_last_step), .last = {1, 20, 3, 8}},
          {.name = "aux by the last step", .router = Router::kSoftmaxAfterTopk,
           .moe = with(with(position, no_capacity), by_last_step), .last = {1, 20, 3, 8}, .gathers = false},
          {.name = "bias", .router = Router::kSigmoid, .moe = with(probability, by_bias), .bias = {0.3F, -0.2F, 0, 0.5F}, .gathers = false}};
}

struct Layer {
  nn::ExpertParameters parameters;
  std::unique_ptr<nn::Experts> experts;

  Layer(const Case& c, mesh::Range here, std::shared_ptr<nn::ExpertExchange> exchange) {
    nn::ExpertShape shape;
    shape.sizes.count = kExperts;
    shape.sizes.per_token = 2;
    shape.sizes.ffn = kInner;
    shape.sizes.router = c.router;
    shape.moe = c.moe;
    parameters = {.router_weight = parameter("router", {kExperts, kModel}),
                  .router_bias = {},
                  .gate_up = cut(parameter("gate_up", {kExperts * 2 * kInner, kModel}), here),
                  .down = cut(parameter("down", {kExperts * kModel, kInner}), here)};
    if (!c.bias.empty()) parameters.router_bias = {.value = at::tensor(c.bias), .grad = at::zeros({kExperts}, at::kFloat)};
    experts = std::make_unique<nn::Experts>(shape, parameters, nullptr, std::move(exchange));
    experts->set_last_loads(c.last);
  }

  static at::Tensor cut(const at::Tensor& all, mesh::Range here) {
    const int64_t each = all.size(0) / kExperts;
    return all.narrow(0, here.begin * each, here.size() * each).clone();
  }
  static nn::Parameter cut(const nn::Parameter& all, mesh::Range here) { return {.value = cut(all.value, here), .grad = cut(all.grad, here)}; }
};

// Valid targets of each sequence.
nn::Sequences sequences(int64_t length, const nn::TokenPlaces* places) {
  return {.count = kBatch, .length = length, .valid = at::tensor({16.0, 11.0, 3.0}, at::kDouble), .places = places};
}

struct Passed {
  at::Tensor y, evaluated, dx;
  std::vector<double> loads;
};
Passed pass(nn::Experts& experts, const at::Tensor& x, const at::Tensor& dy, const nn::Sequences& sequences) {
  Passed passed;
  passed.evaluated = experts.forward(x, nullptr, sequences);
  const auto saved = experts.new_saved();
  passed.y = experts.forward(x, saved.get(), sequences);
  passed.dx = experts.backward_input(dy, *saved);
  experts.backward_weight(*saved);
  passed.loads = experts.take_loads();
  return passed;
}

struct Degrees {
  int cp, tp, ep;
};

// Ranks of tp are neighbours, and so are those of ep, of all ranks.
struct Groups {
  Groups(comm::World& world, const Degrees& degrees) : all(world.all_ranks("all")) {
    const int rank = world.rank();
    context = world.communicator(members(world, [&](int other) { return other % degrees.tp == rank % degrees.tp; }), "cp");
    tensor = world.communicator(members(world, [&](int other) { return other / degrees.tp == rank / degrees.tp; }), "tp");
    experts = world.communicator(members(world, [&](int other) { return other / degrees.ep == rank / degrees.ep; }), "ep");
    copies = world.communicator(members(world, [&](int other) { return other % degrees.ep == rank % degrees.ep; }), "edp");
  }
  static std::vector<int> members(const comm::World& world, const std::function<bool(int)>& is_one) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank)
      if (is_one(rank)) ranks.push_back(rank);
    return ranks;
  }
  static void sum(comm::Communicator& over, const at::Tensor& values, const char* name) {
    if (over.size() > 1) over.all_reduce(values, {.id = program::named_call(name)}).wait();
  }

  std::unique_ptr<comm::Communicator> all, context, tensor, experts, copies;
};

void expect_loads(const std::vector<double>& loads, const std::vector<double>& expected, comm::Communicator& all) {
  const at::Tensor sums = at::tensor(loads, at::kDouble);
  Groups::sum(all, sums, "loads");
  ASSERT_EQ(sums.numel(), std::ssize(expected));
  for (int64_t i = 0; i < sums.numel(); ++i) {
    const double sum = sums[i].item<double>(), from = expected[static_cast<size_t>(i)];
    if (i <= kExperts) {
      EXPECT_EQ(sum, from) << (i < kExperts ? "assignments of expert " : "dropped ") << i;
    } else {
      EXPECT_NEAR(sum, from, 1e-5 * (1 + std::abs(from))) << "loss " << i;
    }
  }
}

// Each microbatch makes the call in both forward passes, or in none.
void expect_call(comm::Communicator& context, const Case& c) {
  const program::Ledger ledger = context.take_ledger();
  ASSERT_EQ(std::ssize(ledger.entries()), c.gathers ? 1 : 0);
  if (!c.gathers) return;
  const auto& [key, entry] = *ledger.entries().begin();
  EXPECT_EQ(program::call_text(key.id), "experts.scores forward");
  EXPECT_EQ(entry.count, 2);
  EXPECT_EQ(entry.payload, 2 * kBatch * kSeq * kExperts * 4);
}

void check_case(Groups& groups, const Degrees& degrees, const Case& c) {
  ContextGroup context(*groups.context, {});
  TensorGroup tensor(*groups.tensor, {});
  ExpertGroup group(*groups.experts, degrees.ep, 1, {.slots = degrees.ep > 1 ? c.slots : 0});
  Layer layer(c, group.experts_here(kExperts),
              std::make_shared<ShardedExchange>(&group, &tensor, &context, program::named_call("block"), "experts"));
  Layer twin(c, {.begin = 0, .end = kExperts}, std::make_shared<nn::ExpertExchange>());
  const nn::TokenPlaces places = token_places(degrees.cp, context.rank());
  const at::Tensor x = random("x", {kBatch, kSeq, kModel}), dy = random("dy", {kBatch, kSeq, kModel});
  const Passed whole = pass(*twin.experts, x, dy, sequences(kSeq, nullptr));
  groups.context->take_ledger();
  const Passed here = pass(*layer.experts, tokens_here(x, places), tokens_here(dy, places), sequences(kSeq / degrees.cp, &places));
  expect_call(*groups.context, c);

  expect_close(here.y, tokens_here(whole.y, places), "y");
  expect_close(here.evaluated, tokens_here(whole.evaluated, places), "y without saved");
  expect_close(here.dx, tokens_here(whole.dx, places), "dx");
  expect_loads(here.loads, whole.loads, *groups.all);
  const nn::ExpertParameters &mine = layer.parameters, &all = twin.parameters;
  Groups::sum(*groups.all, mine.router_weight.grad, "router");
  expect_close(mine.router_weight.grad, all.router_weight.grad, "gradient of the router");
  Groups::sum(*groups.copies, mine.gate_up.grad, "gate_up");
  expect_close(mine.gate_up.grad, Layer::cut(all.gate_up.grad, group.experts_here(kExperts)), "gradient of gate and up");
  Groups::sum(*groups.copies, mine.down.grad, "down");
  expect_close(mine.down.grad, Layer::cut(all.down.grad, group.experts_here(kExperts)), "gradient of down");
  if (!mine.router_bias.defined()) return;
  Groups::sum(*groups.all, mine.router_bias.grad, "bias");
  EXPECT_TRUE(at::equal(mine.router_bias.grad, all.router_bias.grad)) << "what the bias goes by";
}

TEST(ExpertsOverContext, AreThoseOfWholeSequences) {
  for (const Degrees& degrees : {Degrees{2, 1, 1}, Degrees{2, 1, 2}, Degrees{2, 2, 2}, Degrees{4, 1, 1}, Degrees{4, 1, 2}, Degrees{4, 2, 1}, Degrees{4, 2, 2}})
    lockstep::testing::run_ranks(degrees.cp * degrees.tp, [&](comm::World& world) {
      Groups groups(world, degrees);
      for (const Case& c : cases()) {
        SCOPED_TRACE(cat("cp ", degrees.cp, ", tp ", degrees.tp, ", ep ", degrees.ep, ", ", c.name));
        check_case(groups, degrees, c);
      }
    });
}

// What could not be found out from the rows themselves.
TEST(ExpertsOverContext, WantThePlacesOfTheirTokens) {
  lockstep::testing::run_ranks(2, [](comm::World& world) {
    const auto communicator = world.all_ranks("cp");
    ContextGroup context(*communicator, {});
    Layer layer(cases().front(), {.begin = 0, .end = kExperts},
                std::make_shared<ShardedExchange>(nullptr, nullptr, &context, program::named_call("block"), "experts"));
    EXPECT_THROW(layer.experts->forward(random("x", {kBatch, kSeq / 2, kModel}), nullptr, sequences(kSeq / 2, nullptr)), InternalError);
  });
}

}  // namespace
}  // namespace lockstep::parallel
