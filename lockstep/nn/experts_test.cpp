// Experts against LibTorch's autograd over a dense form, in which every token passes every expert and most weights are zero.
#include "lockstep/nn/experts.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/mlp.h"
#include "lockstep/nn/router.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using config::Balance;
using config::Drop;
using config::Router;
using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr int64_t kBatch = 3, kWidth = 10, kInner = 6;

struct Case {
  std::string name;
  arch::ExpertSizes sizes;
  config::MoeSection moe{.balance = Balance::kNone};
  int64_t length = 8;
  std::vector<float> bias{};
  std::vector<double> last{};  // the loads of the step before, with scope last_step; none: the first step
  at::ScalarType dtype = at::kFloat;
  double bound = 2e-5;
};

arch::ExpertSizes sizes(int64_t count, int64_t per_token, Router router) {
  arch::ExpertSizes result;
  result.count = count;
  result.per_token = per_token;
  result.ffn = kInner;
  result.router = router;
  return result;
}

// As sizes above, changed by `change`.
template <typename Change>
arch::ExpertSizes with(arch::ExpertSizes result, const Change& change) {
  change(result);
  return result;
}

config::MoeSection capacity(double factor, Drop drop) {
  config::MoeSection moe;
  moe.capacity_factor = factor;
  moe.drop = drop;
  moe.balance = Balance::kNone;
  return moe;
}

config::MoeSection losses(double aux, double z) {
  config::MoeSection moe;
  moe.aux_coefficient = aux;
  moe.z_coefficient = z;
  return moe;
}

config::MoeSection bias_balance(double z = 0) {
  config::MoeSection moe;
  moe.balance = Balance::kBias;
  moe.z_coefficient = z;
  return moe;
}

config::MoeSection by_last_step(config::MoeSection moe) {
  moe.scope = config::MoeScope::kLastStep;
  return moe;
}

std::vector<double> last_loads(const Case& c) {
  return c.last.empty() ? std::vector<double>(static_cast<size_t>(c.sizes.count), 1.0) : c.last;
}

const auto kShared = [](arch::ExpertSizes& s) { s.shared = 1; };
const auto kGroups = [](arch::ExpertSizes& s) {
  s.groups = 4;
  s.top_groups = 2;
  s.routed_scale = 2.5;
};

const std::vector<Case> kCases = {
    {.name = "softmax", .sizes = sizes(5, 2, Router::kSoftmax)},
    {.name = "softmax after top-k", .sizes = sizes(5, 2, Router::kSoftmaxAfterTopk)},
    {.name = "sigmoid", .sizes = sizes(5, 2, Router::kSigmoid)},
    {.name = "expert choice", .sizes = sizes(5, 2, Router::kExpertChoice)},
    {.name = "expert choice with capacity", .sizes = sizes(5, 2, Router::kExpertChoice), .moe = capacity(1.5, Drop::kProbability)},
    {.name = "groups of sigmoid", .sizes = with(sizes(12, 3, Router::kSigmoid), kGroups)},
    {.name = "groups of softmax", .sizes = with(sizes(12, 3, Router::kSoftmax), kGroups)},
    {.name = "groups of logits", .sizes = with(sizes(12, 3, Router::kSoftmaxAfterTopk), kGroups)},
    {.name = "drop by probability", .sizes = sizes(4, 2, Router::kSoftmaxAfterTopk), .moe = capacity(0.5, Drop::kProbability)},
    {.name = "drop by position", .sizes = sizes(4, 2, Router::kSigmoid), .moe = capacity(0.5, Drop::kPosition)},
    {.name = "drop of softmax", .sizes = sizes(4, 3, Router::kSoftmax), .moe = capacity(0.75, Drop::kPosition)},
    {.name = "aux of softmax", .sizes = sizes(5, 2, Router::kSoftmax), .moe = losses(0.3, 0)},
    {.name = "aux and z of logits", .sizes = sizes(5, 2, Router::kSoftmaxAfterTopk), .moe = losses(0.3, 0.2)},
    {.name = "aux and z of sigmoid", .sizes = sizes(5, 2, Router::kSigmoid), .moe = losses(0.3, 0.2)},
    {.name = "aux of softmax by the last step", .sizes = sizes(5, 2, Router::kSoftmax), .moe = by_last_step(losses(0.3, 0.1)), .last = {3, 0, 10, 1, 6}},
    {.name = "aux of logits by the last step", .sizes = sizes(5, 2, Router::kSoftmaxAfterTopk), .moe = by_last_step(losses(0.3, 0)), .last = {7, 7, 0, 0, 1}},
    {.name = "aux of sigmoid by the last step", .sizes = sizes(5, 2, Router::kSigmoid), .moe = by_last_step(losses(0.3, 0.2)), .last = {0, 0, 0, 0, 9}},
    {.name = "aux before the first step", .sizes = sizes(5, 2, Router::kSigmoid), .moe = by_last_step(losses(0.3, 0.2))},
    {.name = "drop by the last load", .sizes = sizes(4, 2, Router::kSoftmaxAfterTopk), .moe = by_last_step(capacity(0.5, Drop::kProbability)), .last = {1, 20, 3, 8}},
    {.name = "drop before the first step", .sizes = sizes(4, 2, Router::kSoftmax), .moe = by_last_step(capacity(0.5, Drop::kPosition))},
    {.name = "z of expert choice", .sizes = sizes(5, 2, Router::kExpertChoice), .moe = losses(0.3, 0.2)},
    {.name = "bias", .sizes = sizes(5, 2, Router::kSigmoid), .moe = bias_balance(), .bias = {0.3f, -0.2f, 0, 0.5f, -0.4f}},
    {.name = "all to one", .sizes = sizes(5, 1, Router::kSigmoid), .moe = bias_balance(0.2), .bias = {0, 0, 50, 0, 0}},
    {.name = "k = E", .sizes = sizes(4, 4, Router::kSoftmaxAfterTopk)},
    {.name = "one expert", .sizes = sizes(1, 1, Router::kSoftmax)},
    {.name = "experts without tokens", .sizes = sizes(40, 1, Router::kSoftmax), .length = 2},
    {.name = "shared", .sizes = with(sizes(5, 2, Router::kSoftmaxAfterTopk), kShared), .moe = losses(0.1, 0.1)},
    {.name = "bf16", .sizes = with(sizes(5, 2, Router::kSoftmaxAfterTopk), kShared), .moe = losses(0.1, 0.1), .dtype = at::kBFloat16, .bound = 0.03},
};

struct Parts {
  ExpertParameters parameters;
  Parameter shared_up, shared_down;
  std::unique_ptr<Experts> experts;
};

Parts build(const Case& c, std::shared_ptr<ExpertExchange> exchange = std::make_shared<ExpertExchange>()) {
  const int64_t count = c.sizes.count;
  Parts parts;
  parts.parameters = {.router_weight = parameter("router", {count, kWidth}, 0.5, c.dtype),
                      .router_bias = {},
                      .gate_up = parameter("gate_up", {count * 2 * kInner, kWidth}, 0.3, c.dtype),
                      .down = parameter("down", {count * kWidth, kInner}, 0.3, c.dtype)};
  if (!c.bias.empty()) parts.parameters.router_bias = {.value = at::tensor(c.bias), .grad = at::zeros({count}, at::kFloat)};
  std::unique_ptr<Mlp> shared;
  if (c.sizes.shared > 0) {
    parts.shared_up = parameter("shared_up", {2 * kInner, kWidth}, 0.3, c.dtype);
    parts.shared_down = parameter("shared_down", {kWidth, kInner}, 0.3, c.dtype);
    shared = std::make_unique<Mlp>(std::make_unique<Linear>(parts.shared_up), std::make_unique<SwiGlu>(),
                                   std::make_unique<Linear>(parts.shared_down));
  }
  parts.experts = std::make_unique<Experts>(ExpertShape{.sizes = c.sizes, .moe = c.moe}, parts.parameters, std::move(shared),
                                            std::move(exchange));
  parts.experts->set_last_loads(c.last);
  return parts;
}

at::Tensor input(const Case& c, std::string_view name = "x") { return random(name, {kBatch, c.length, kWidth}).to(c.dtype); }

// Valid targets differ from sequence to sequence.
Sequences sequences(const Case& c) {
  std::vector<double> valid;
  for (int64_t b = 0; b < kBatch; ++b) valid.push_back(static_cast<double>(c.length - b % c.length));
  return {.count = kBatch, .length = c.length, .valid = at::tensor(valid, at::kDouble)};
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  const int64_t inner = gate_up.size(0) / 2;
  const at::Tensor h = at::linear(x, gate_up);
  return at::linear(at::silu(h.narrow(1, 0, inner)) * h.narrow(1, inner, inner), down);
}

// The dense form. Which experts a token gets is routing_test's.
struct Dense {
  at::Tensor x, router, gate_up, down, shared_up, shared_down;  // leaves
  at::Tensor y, aux, z;
  std::vector<Assignment> assignments;

  Dense(const Case& c, const Parts& parts, const at::Tensor& value)
      : x(leaf(value)), router(leaf(parts.parameters.router_weight.value)), gate_up(leaf(parts.parameters.gate_up.value)),
        down(leaf(parts.parameters.down.value)) {
    const at::Tensor rows = x.view({-1, kWidth}), logits = at::linear(rows, router);
    choose(c, logits.detach().contiguous());
    const at::Tensor weights = weigh(c, logits);
    y = at::zeros(rows.sizes(), at::kFloat);
    for (int64_t e = 0; e < c.sizes.count; ++e)
      y = y + weights.narrow(1, e, 1) * gated(rows, gate_up.narrow(0, e * 2 * kInner, 2 * kInner), down.narrow(0, e * kWidth, kWidth));
    if (c.sizes.shared > 0) {
      shared_up = leaf(parts.shared_up.value);
      shared_down = leaf(parts.shared_down.value);
      y = y + gated(rows, shared_up, shared_down);
    }
    y = y.view(x.sizes());
    make_losses(c, logits);
  }

  void choose(const Case& c, const at::Tensor& logits) {
    RoutingRules rules{.experts = c.sizes.count, .per_token = c.sizes.per_token, .router = c.sizes.router};
    rules.groups = c.sizes.groups;
    rules.top_groups = c.sizes.top_groups;
    rules.routed_scale = c.sizes.routed_scale;
    rules.capacity_factor = c.moe.capacity_factor;
    rules.drop = c.moe.drop;
    const at::Tensor scores = router_scores(logits, rules.router);
    if (rules.router == Router::kExpertChoice) {
      assignments = choose_tokens(scores, rules, c.length);
      return;
    }
    assignments = choose_experts(scores, c.bias.empty() ? at::Tensor() : at::tensor(c.bias), rules);
    if (rules.capacity_factor && c.moe.scope == config::MoeScope::kLastStep)
      drop_beyond_last_load(assignments, rules, c.length, last_loads(c));
    else if (rules.capacity_factor)
      drop_beyond_capacity(assignments, rules, c.length);
  }

  // 1 where a token has an expert.
  at::Tensor mask(const at::Tensor& logits, bool kept_only) const {
    at::Tensor result = at::zeros(logits.sizes(), at::kFloat);
    for (const Assignment& a : assignments)
      if (a.kept || !kept_only) result.data_ptr<float>()[a.row * result.size(1) + a.expert] = 1;
    return result;
  }

  at::Tensor weigh(const Case& c, const at::Tensor& logits) const {
    const at::Tensor chosen = mask(logits, false), kept = mask(logits, true);
    at::Tensor weights = at::softmax(logits, 1);
    if (c.sizes.router == Router::kSoftmaxAfterTopk)
      weights = at::softmax(logits.masked_fill(chosen.eq(0), -std::numeric_limits<double>::infinity()), 1);
    if (c.sizes.router == Router::kSigmoid) {
      const at::Tensor s = at::sigmoid(logits) * chosen;
      weights = s / s.sum(1, /*keepdim=*/true);
    }
    return weights * kept * c.sizes.routed_scale;
  }

  void make_losses(const Case& c, const at::Tensor& logits) {
    const int64_t count = c.sizes.count;
    at::Tensor p = at::softmax(logits, 1);
    if (c.sizes.router == Router::kSigmoid) p = at::sigmoid(logits) / at::sigmoid(logits).sum(1, /*keepdim=*/true);
    const at::Tensor valid = sequences(c).valid.to(at::kFloat).view({kBatch, 1});
    at::Tensor share = mask(logits, false).view({kBatch, c.length, count}).sum(1) / static_cast<double>(c.length * c.sizes.per_token);
    if (c.moe.scope == config::MoeScope::kLastStep) {
      const at::Tensor last = at::tensor(last_loads(c), at::kDouble).to(at::kFloat);
      share = (last / last.sum()).expand({kBatch, count});
    }
    aux = (valid * share * p.view({kBatch, c.length, count}).mean(1) * static_cast<double>(count)).sum();
    const at::Tensor squares = at::logsumexp(logits, {1}).square().view({kBatch, c.length});
    z = (squares * valid / static_cast<double>(c.length)).sum();
  }

  void backward(const Case& c, const at::Tensor& dy) {
    at::Tensor loss = (y * dy.to(at::kFloat)).sum() + z * c.moe.z_coefficient;
    if (has_aux(c)) loss = loss + aux * c.moe.aux_coefficient;
    loss.backward();
  }
  static bool has_aux(const Case& c) { return c.moe.balance == Balance::kAux && c.sizes.router != Router::kExpertChoice; }
};

void expect_gradients(const Parts& parts, const Dense& dense, double bound) {
  expect_close(parts.parameters.router_weight.grad, dense.router.grad(), "router", bound);
  expect_close(parts.parameters.gate_up.grad, dense.gate_up.grad(), "gate and up", bound);
  expect_close(parts.parameters.down.grad, dense.down.grad(), "down", bound);
  if (!dense.shared_up.defined()) return;
  expect_close(parts.shared_up.grad, dense.shared_up.grad(), "shared gate and up", bound);
  expect_close(parts.shared_down.grad, dense.shared_down.grad(), "shared down", bound);
}

void expect_loads(Experts& experts, const Case& c, const Dense& dense) {
  const std::vector<double> loads = experts.take_loads();
  ASSERT_EQ(std::ssize(loads), c.sizes.count + kLoadExtras);
  std::vector<double> expected(loads.size(), 0.0);
  double* const extras = expected.data() + c.sizes.count;
  for (const Assignment& a : dense.assignments) {
    ++expected[static_cast<size_t>(a.expert)];
    if (!a.kept) ++extras[0];
  }
  if (Dense::has_aux(c)) extras[1] = dense.aux.item<double>();
  if (c.moe.z_coefficient > 0) extras[2] = dense.z.item<double>();
  for (size_t i = 0; i < loads.size(); ++i) EXPECT_NEAR(loads[i], expected[i], 1e-3 * std::max(1.0, expected[i])) << i;
  for (const double load : experts.take_loads()) EXPECT_EQ(load, 0);
}

TEST(Experts, MatchAutograd) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Parts parts = build(c);
    const at::Tensor x = input(c), dy = input(c, "dy");
    Dense dense(c, parts, x);
    dense.backward(c, dy);
    expect_close(parts.experts->forward(x, nullptr, sequences(c)), dense.y, "y without saved", c.bound);
    const auto saved = parts.experts->new_saved();
    expect_close(parts.experts->forward(x, saved.get(), sequences(c)), dense.y, "y", c.bound);
    expect_close(parts.experts->backward_input(dy, *saved), dense.x.grad(), "dx", c.bound);
    parts.experts->backward_weight(*saved);
    expect_gradients(parts, dense, c.bound);
    expect_loads(*parts.experts, c, dense);
  }
}

TEST(Experts, TheGradientOfTheBiasCountsTokens) {
  for (const Case& c : kCases) {
    if (c.bias.empty()) continue;
    SCOPED_TRACE(c.name);
    const Parts parts = build(c);
    const auto saved = parts.experts->new_saved();
    parts.experts->forward(input(c), saved.get(), sequences(c));
    parts.experts->start_backward_input(input(c, "dy"), *saved)();
    parts.experts->backward_weight(*saved);
    const std::vector<double> loads = parts.experts->take_loads();
    const int64_t all = kBatch * c.length * c.sizes.per_token;
    for (int64_t e = 0; e < c.sizes.count; ++e) {
      const double expected = static_cast<double>(c.sizes.count) * loads[static_cast<size_t>(e)] - static_cast<double>(all);
      EXPECT_EQ(parts.parameters.router_bias.grad[e].item<double>(), expected);
    }
    EXPECT_EQ(parts.parameters.router_bias.grad.sum().item<double>(), 0);
  }
}

// dx and all gradients after one pass; `keep` makes what backward wants.
template <typename Keep>
std::vector<at::Tensor> gradients(const Case& c, const Keep& keep) {
  const Parts parts = build(c);
  const auto saved = parts.experts->new_saved();
  keep(*parts.experts, *saved);
  Pending dx = parts.experts->start_backward_input(input(c, "dy"), *saved);
  parts.experts->backward_weight(*saved);
  const std::vector<double> loads = parts.experts->take_loads();
  return {dx(), parts.parameters.router_weight.grad, parts.parameters.gate_up.grad, parts.parameters.down.grad,
          at::tensor(loads, at::kDouble)};
}

TEST(Experts, RecomputationGivesTheSameBits) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const at::Tensor x = input(c);
    const auto expected = gradients(c, [&](Experts& experts, Branch::Saved& saved) { experts.forward(x, &saved, sequences(c)); });
    const auto full = gradients(c, [&](Experts& experts, Branch::Saved& saved) {
      experts.forward(x, nullptr, sequences(c));
      experts.recompute(x, saved, sequences(c));
    });
    const auto selective = gradients(c, [&](Experts& experts, Branch::Saved& saved) {
      experts.forward(x, &saved, sequences(c));
      experts.forget(saved);
      EXPECT_FALSE(static_cast<Experts::Saved&>(saved).x.defined());
      experts.restore(x, saved);
    });
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(full[i], expected[i])) << "full " << i;
      EXPECT_TRUE(at::equal(selective[i], expected[i])) << "selective " << i;
    }
  }
}

TEST(Experts, GenerationDropsNothing) {
  Case c{.name = "", .sizes = sizes(4, 2, Router::kSoftmaxAfterTopk), .moe = capacity(0.25, Drop::kProbability)};
  const at::Tensor x = input(c);
  const at::Tensor y = build(c).experts->decode(x, {}, {});
  EXPECT_FALSE(at::equal(build(c).experts->forward(x, nullptr, sequences(c)), y));
  c.moe.capacity_factor.reset();
  EXPECT_TRUE(at::equal(build(c).experts->forward(x, nullptr, sequences(c)), y));
}

TEST(Experts, ExpertChoiceDoesNotGenerate) {
  const Case c{.name = "", .sizes = sizes(4, 2, Router::kExpertChoice)};
  EXPECT_THROW(build(c).experts->decode(input(c), {}, {}), ConfigError);
}

// One of several ranks that hold all rows and route a part of them each; the others' parts are added by the test.
class PartOfRows : public ExpertExchange {
 public:
  static constexpr int kRanks = 4;  // of 9 rows: the last one has none
  explicit PartOfRows(int rank) : rank_(rank) {}
  mesh::Range own_rows(int64_t rows) const override { return mesh::padded_range(rows, kRanks, rank_); }
  at::Tensor take_own(const at::Tensor& x, int64_t rows) override {
    const mesh::Range own = own_rows(rows);
    return x.view({rows, x.size(-1)}).narrow(0, own.begin, own.size());
  }
  Pending give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, ExchangePhase) override {
    at::Tensor all = at::zeros(like.sizes(), own.options());
    const mesh::Range range = own_rows(rows);
    all.view({rows, like.size(-1)}).narrow(0, range.begin, range.size()).copy_(own);
    return [all] { return all; };
  }

 private:
  int rank_;
};

void expect_parts_add_up(const Case& c) {
  const at::Tensor x = input(c), dy = input(c, "dy");
  const Parts whole = build(c);
  Dense dense(c, whole, x);
  dense.backward(c, dy);
  at::Tensor y = at::zeros_like(x), dx = at::zeros_like(x);
  double aux = 0;
  std::vector<Parts> ranks;
  for (int rank = 0; rank < PartOfRows::kRanks; ++rank) {
    const Parts& parts = ranks.emplace_back(build(c, std::make_shared<PartOfRows>(rank)));
    const auto saved = parts.experts->new_saved();
    y.add_(parts.experts->forward(x, saved.get(), sequences(c)));
    dx.add_(parts.experts->backward_input(dy, *saved));
    parts.experts->backward_weight(*saved);
    aux += parts.experts->take_loads()[static_cast<size_t>(c.sizes.count + 1)];
    if (rank == 0) continue;
    ranks[0].parameters.router_weight.grad.add_(parts.parameters.router_weight.grad);
    ranks[0].parameters.gate_up.grad.add_(parts.parameters.gate_up.grad);
    ranks[0].parameters.down.grad.add_(parts.parameters.down.grad);
  }
  expect_close(y, dense.y, "y", c.bound);
  expect_close(dx, dense.x.grad(), "dx", c.bound);
  expect_gradients(ranks[0], dense, c.bound);
  if (Dense::has_aux(c)) {
    EXPECT_NEAR(aux, dense.aux.item<double>(), 1e-5 * aux);
  }
}

TEST(Experts, PartsOfTheRowsAddUp) {
  expect_parts_add_up({.name = "", .sizes = sizes(5, 2, Router::kSigmoid), .moe = bias_balance(), .length = 3, .bias = {0.3f, 0, 0, 0.5f, -0.4f}});
}

// A rank needs no scores of other rows where the shares are those of the step before.
TEST(Experts, PartsOfTheRowsAddUpByTheLastStep) {
  for (const Router router : {Router::kSoftmax, Router::kSoftmaxAfterTopk, Router::kSigmoid})
    expect_parts_add_up({.name = "", .sizes = sizes(5, 2, router), .moe = by_last_step(losses(0.3, 0.2)), .length = 3, .last = {3, 0, 10, 1, 6}});
}

}  // namespace
}  // namespace lockstep::nn
