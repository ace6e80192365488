// A norm over all heads whose heads lie on several ranks, two of which may have the same key head, against LibTorch's autograd of the whole.
#include "lockstep/nn/whole_norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/parallel/tensor/row_sums.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::leaf;
using lockstep::testing::random;
using lockstep::testing::run_ranks;
using nn::Parameter;
using nn::WholeNorm;

constexpr int64_t kBatch = 2, kSeq = 5, kHeads = 4, kKeys = 2, kSize = 6;
constexpr double kEps = 1e-2;

// Counts, and passes on.
class Counted : public nn::RowSums {
 public:
  Counted(TensorGroup& group, int& made) : sums_(group, program::named_call("block").of_part("attention.qk_norm")), made_(made) {}
  void sum_forward(const at::Tensor& numbers) override { ++made_, sums_.sum_forward(numbers); }
  void sum_backward(const at::Tensor& numbers) override { ++made_, sums_.sum_backward(numbers); }

 private:
  TensorRowSums sums_;
  int& made_;
};

at::Tensor reference(const at::Tensor& heads, const at::Tensor& weight, bool plus_one) {
  const at::Tensor x = heads.flatten(2);
  return (x * at::rsqrt(x.square().mean(-1, true) + kEps) * (plus_one ? weight + 1 : weight)).view(heads.sizes());
}

struct Case {
  int ranks = 1;
  at::ScalarType dtype = at::kFloat;
  bool plus_one = false;
  double bound = 1e-5;
};

// Of whole rows; where several ranks have a key head the gradient of its output is the sum of `copies` parts.
struct Whole {
  explicit Whole(const Case& c) : copies(std::max<int64_t>(1, c.ranks / kKeys)) {
    const auto of = [&](const char* name, at::IntArrayRef shape) { return random(name, shape).to(c.dtype); };
    q = leaf(of("q", {kBatch, kSeq, kHeads, kSize})), k = leaf(of("k", {kBatch, kSeq, kKeys, kSize}));
    q_weight = leaf(of("qw", {kHeads * kSize})), k_weight = leaf(of("kw", {kKeys * kSize}));
    dq = of("dq", q.sizes());
    at::Tensor sum = at::zeros(k.sizes());
    for (int64_t copy = 0; copy < copies; ++copy) dk.push_back(of(cat("dk", copy).c_str(), k.sizes())), sum = sum + dk.back().to(at::kFloat);
    of_q = reference(q, q_weight, c.plus_one), of_k = reference(k, k_weight, c.plus_one);
    of_q.backward(dq.to(at::kFloat));
    of_k.backward(sum);
  }
  const int64_t copies;
  at::Tensor q, k, q_weight, k_weight, dq, of_q, of_k;
  std::vector<at::Tensor> dk;
};

struct Outcome {
  at::Tensor dk, k_weight;
};

Outcome run_rank(const Case& c, const Whole& whole, TensorGroup* group, int rank) {
  const int64_t heads = kHeads / c.ranks, keys = std::max<int64_t>(1, kKeys / c.ranks), first_key = rank / whole.copies * keys;
  const auto queries_of = [&](const at::Tensor& x) { return x.detach().narrow(2, rank * heads, heads); };
  const auto keys_of = [&](const at::Tensor& x) { return x.detach().narrow(2, first_key, keys); };
  const auto weight = [&](const at::Tensor& of, int64_t first, int64_t count) {
    return Parameter{.value = of.detach().narrow(0, first * kSize, count * kSize).to(c.dtype), .grad = at::zeros({count * kSize})};
  };
  const Parameter q_weight = weight(whole.q_weight, rank * heads, heads), k_weight = weight(whole.k_weight, first_key, keys);
  int made = 0;
  WholeNorm norm(q_weight, k_weight,
                 {.q_width = kHeads * kSize, .k_width = kKeys * kSize, .key_copies = whole.copies, .eps = kEps, .plus_one = c.plus_one},
                 group ? std::make_unique<Counted>(*group, made) : nullptr);
  // Side by side in one tensor, with values behind them.
  const at::Tensor projected = at::cat({queries_of(whole.q), keys_of(whole.k), keys_of(whole.k)}, 2).to(c.dtype), before = projected.clone();
  const at::Tensor q = projected.narrow(2, 0, heads), k = projected.narrow(2, heads, keys);
  nn::QueryKeyNorm::Saved saved;
  norm.forward(q, k, &saved);
  expect_close(q, queries_of(whole.of_q), "q", c.bound);
  expect_close(k, keys_of(whole.of_k), "k", c.bound);
  const at::Tensor normed = projected.clone();
  norm.forget(q, k, saved);
  EXPECT_TRUE(projected.equal(before));
  EXPECT_FALSE(saved.q.x.defined());
  norm.forward(q, k, &saved);
  EXPECT_TRUE(projected.equal(normed)) << "the same bits";
  EXPECT_EQ(made, group ? 1 : 0) << "the statistics were kept";

  const at::Tensor dq = queries_of(whole.dq).clone(), dk = keys_of(whole.dk[static_cast<size_t>(rank % whole.copies)]).clone();
  norm.backward_input(dq, dk, saved);
  EXPECT_EQ(q_weight.grad.abs().max().item<double>(), 0) << "I touched W";
  norm.backward_weight(saved);
  EXPECT_FALSE(saved.q.rstd.defined() || saved.k.dy.defined());
  expect_close(dq, queries_of(whole.q.grad()), "dq", c.bound);
  expect_close(q_weight.grad, whole.q_weight.grad().narrow(0, rank * heads * kSize, heads * kSize), "gradient of q's weight", c.bound);
  return {.dk = dk.to(at::kFloat), .k_weight = k_weight.grad};
}

void check(const Case& c) {
  SCOPED_TRACE(cat(c.ranks, " ranks ", c.dtype, c.plus_one ? " plus one" : ""));
  const Whole whole(c);
  std::vector<Outcome> of_ranks(static_cast<size_t>(c.ranks));
  if (c.ranks == 1)
    of_ranks[0] = run_rank(c, whole, nullptr, 0);
  else
    run_ranks(c.ranks, [&](comm::World& world) {
      const auto communicator = world.all_ranks("tp");
      TensorGroup group(*communicator, {});
      of_ranks[static_cast<size_t>(world.rank())] = run_rank(c, whole, &group, world.rank());
    });
  // What the ranks that have a key head make of it is the whole together.
  const int64_t keys = std::max<int64_t>(1, kKeys / c.ranks);
  for (int64_t first = 0; first < c.ranks; first += whole.copies) {
    at::Tensor dk = of_ranks[static_cast<size_t>(first)].dk, weight = of_ranks[static_cast<size_t>(first)].k_weight;
    for (int64_t copy = 1; copy < whole.copies; ++copy) {
      dk = dk + of_ranks[static_cast<size_t>(first + copy)].dk;
      weight = weight + of_ranks[static_cast<size_t>(first + copy)].k_weight;
    }
    const int64_t head = first / whole.copies * keys;
    expect_close(dk, whole.k.grad().narrow(2, head, keys), "dk", c.bound);
    expect_close(weight, whole.k_weight.grad().narrow(0, head * kSize, keys * kSize), "gradient of k's weight", c.bound);
  }
}

TEST(WholeNorm, MatchesAutograd) {
  for (const int ranks : {1, 2, 4}) {
    check({.ranks = ranks});
    check({.ranks = ranks, .plus_one = true});
    check({.ranks = ranks, .dtype = at::kBFloat16, .bound = 0.03});
  }
}

}  // namespace
}  // namespace lockstep::parallel
