// Layers that are made of a group and sizes, without an engine, against whole ones of the same names.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/parallel/tensor/cross_entropy.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/own_parameter.h"
#include "lockstep/parallel/tensor/vocabulary.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using nn::Parameter;
using testing::expect_close;
using testing::random;

constexpr int64_t kIn = 10, kOut = 7, kVocab = 37, kBatch = 2, kSeq = 5;

// `alone`: a group of one, whose layers are whole.
void on_groups(bool sequence, const std::function<void(TensorGroup& group, TensorGroup& alone)>& body) {
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(cat(size, " ranks", sequence ? ", sequence parallel" : ""));
    lockstep::testing::run_ranks(size, [&](comm::World& world) {
      const auto communicator = world.all_ranks("tp"), one = world.communicator({world.rank()}, "one");
      TensorGroup group(*communicator, {.sequence_parallel = sequence}), alone(*one, {});
      group.set_rows(kBatch * kSeq);
      body(group, alone);
    });
  }
}

at::Tensor part(const at::Tensor& whole, int64_t dim, const TensorGroup& group) {
  const mesh::Range range = mesh::shard_range(whole.size(dim), group.size(), group.rank());
  return whole.narrow(dim, range.begin, range.size()).contiguous();
}
// What the ranks hold between layers.
at::Tensor between(const at::Tensor& whole, const TensorGroup& group) {
  if (!group.sequence_parallel()) return whole;
  const at::Tensor rows = nn::flatten_rows(whole);
  const mesh::Range here = group.local_rows(rows.size(0));
  return rows.narrow(0, here.begin, here.size()).contiguous();
}
void expect_rows(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  expect_close(nn::flatten_rows(actual), nn::flatten_rows(expected), what);
}

nn::Linear whole_linear(const LinearSizes& sizes, const TensorGroup& alone) {
  const std::string weight = cat(sizes.name, ".weight"), bias = cat(sizes.name, ".bias");
  return nn::Linear(own_parameter({.name = weight, .shape = {sizes.out, sizes.in}}, alone),
                    sizes.bias ? own_parameter({.name = bias, .shape = {sizes.out}, .init_std = 0}, alone) : Parameter());
}

TEST(OwnParameter, PartsAreThoseOfTheWhole) {
  on_groups(false, [](TensorGroup& group, TensorGroup& alone) {
    WholeParameter of{.name = "w", .shape = {kOut, kIn}, .init_std = 0.5};
    const at::Tensor whole = own_parameter(of, alone).value;
    EXPECT_NEAR(whole.std().item<double>(), 0.5, 0.1);
    for (const int dim : {0, 1}) {
      of.cut_dim = dim;
      const Parameter here = own_parameter(of, group);
      EXPECT_TRUE(here.value.equal(part(whole, dim, group))) << dim;
      EXPECT_TRUE(here.value.is_contiguous());
      EXPECT_EQ(here.grad.abs().max().item<float>(), 0);
    }
    EXPECT_FALSE(own_parameter({.name = "v", .shape = {kOut, kIn}, .init_std = 0.5}, alone).value.equal(whole));
    EXPECT_EQ(own_parameter({.name = "b", .shape = {kOut}, .options = at::kBFloat16}, group).grad.scalar_type(), at::kFloat);
    EXPECT_THROW(own_parameter({.name = "s", .shape = {0, 3}, .cut_dim = 0}, group), InternalError);
  });
}

TEST(OwnColumnParallelLinear, GathersItsOutput) {
  for (const bool sequence : {false, true})
    on_groups(sequence, [](TensorGroup& group, TensorGroup& alone) {
      const LinearSizes sizes{.name = "lone", .in = kIn, .out = kOut};
      nn::Linear twin = whole_linear(sizes, alone);
      ColumnParallelLinear layer(group, sizes, {.gather_output = true});
      const at::Tensor x = random("x", {kBatch, kSeq, kIn}), dy = random("dy", {kBatch, kSeq, kOut});
      for (const bool beside : {false, true}) {
        nn::Linear::Saved saved, twin_saved;
        const at::Tensor y = layer.forward(between(x, group), &saved);
        expect_rows(y, twin.forward(x, &twin_saved), "y");
        const at::Tensor dy_here = group.sequence_parallel() ? nn::flatten_rows(dy) : dy;
        const at::Tensor dx = beside ? layer.start_backward_input(dy_here, saved)() : layer.backward_input(dy_here, saved);
        expect_rows(dx, between(twin.backward_input(dy, twin_saved), group), "dx");
        layer.backward_weight(saved);
      }
      const at::Tensor grad = nn::flatten_rows(dy).t().matmul(nn::flatten_rows(x)).mul(2);
      expect_close(layer.weight().grad, part(grad, 0, group), "gradient of the weight");
      expect_close(layer.bias().grad, part(nn::flatten_rows(dy).sum(0).mul(2), 0, group), "gradient of the bias");
    });
}

TEST(OwnRowParallelLinear, TakesItsPartOfAWholeInput) {
  for (const bool sequence : {false, true})
    on_groups(sequence, [](TensorGroup& group, TensorGroup& alone) {
      const LinearSizes sizes{.name = "row", .in = kIn, .out = kOut, .bias = false};
      nn::Linear twin = whole_linear(sizes, alone);
      RowParallelLinear layer(group, sizes, {.input_is_parallel = false});
      const at::Tensor x = random("x", {kBatch, kSeq, kIn}), dy = random("dy", {kBatch, kSeq, kOut});
      nn::Linear::Saved saved, twin_saved;
      const at::Tensor x_here = group.sequence_parallel() ? nn::flatten_rows(x) : x;
      expect_rows(layer.forward(x_here, &saved), between(twin.forward(x, &twin_saved), group), "y");
      expect_rows(layer.backward_input(between(dy, group), saved), twin.backward_input(dy, twin_saved), "dx");
      layer.backward_weight(saved);
      const at::Tensor grad = nn::flatten_rows(dy).t().matmul(nn::flatten_rows(x));
      expect_close(layer.weight().grad, part(grad, 1, group), "gradient of the weight");
    });
}

// Column, then row, as in a block: nothing is gathered in between.
TEST(OwnLinears, AreAPair) {
  on_groups(false, [](TensorGroup& group, TensorGroup& alone) {
    const LinearSizes first{.name = "up", .in = kIn, .out = 15}, last{.name = "down", .in = 15, .out = kIn};
    ColumnParallelLinear up(group, first);
    RowParallelLinear down(group, last);
    nn::Linear whole_up = whole_linear(first, alone), whole_down = whole_linear(last, alone);
    up.bias().value.fill_(0.25);
    down.bias().value.fill_(0.5);
    const at::Tensor x = random("x", {kBatch, kSeq, kIn}), dy = random("dy", {kBatch, kSeq, kIn});
    nn::Linear::Saved s1, s2, t1, t2;
    const at::Tensor y = down.forward(up.forward(x, &s1), &s2);
    const at::Tensor w1 = own_parameter({.name = "up.weight", .shape = {15, kIn}}, alone).value;
    const at::Tensor w2 = own_parameter({.name = "down.weight", .shape = {kIn, 15}}, alone).value;
    expect_close(y, x.matmul(w1.t()).add(0.25).matmul(w2.t()).add(0.5), "y");
    whole_down.forward(whole_up.forward(x, &t1), &t2);
    expect_close(up.backward_input(down.backward_input(dy, s2), s1), whole_up.backward_input(whole_down.backward_input(dy, t2), t1), "dx");
  });
}

TEST(OwnVocabParallelEmbedding, LooksUpTheWholeVocabulary) {
  on_groups(false, [](TensorGroup& group, TensorGroup& alone) {
    WholeParameter of{.name = "embed.tokens.weight", .shape = {kVocab, kIn}};
    const at::Tensor whole = own_parameter(of, alone).value;
    of.cut_dim = 0;
    VocabParallelEmbedding layer(own_parameter(of, group), {}, nn::Dropout({}), group, kVocab);
    nn::Microbatch m{.tokens = at::empty({kBatch, kSeq}, at::kLong), .targets = {}};
    for (int64_t i = 0; i < kBatch * kSeq; ++i) m.tokens.data_ptr<int64_t>()[i] = i * 9 % kVocab;
    expect_close(layer.forward({}, m, nullptr), whole.index_select(0, m.tokens.view(-1)).view({kBatch, kSeq, kIn}), "y");
  });
}

TEST(OwnVocabParallelCrossEntropy, IsThatOfAllLogits) {
  on_groups(false, [](TensorGroup& group, TensorGroup&) {
    const at::Tensor logits = random("logits", {kBatch * kSeq, kVocab}, 3), targets = at::empty({kBatch * kSeq}, at::kLong);
    for (int64_t i = 0; i < targets.size(0); ++i) targets.data_ptr<int64_t>()[i] = i == 3 ? nn::kIgnoredTarget : i * 9 % kVocab;
    const at::Tensor whole = logits.clone();
    const at::Tensor expected = nn::cross_entropy_(whole, targets);
    VocabParallelCrossEntropy layer(group, kVocab);
    const at::Tensor here = part(logits, 1, group).clone();
    EXPECT_EQ(layer.tokens().size(), here.size(1));
    expect_close(layer.loss_(here, targets), expected, "loss");
    expect_close(here, part(whole, 1, group), "gradient");
    EXPECT_THROW(layer.loss_(at::zeros({3, here.size(1)}), targets), InternalError);
  });
}

}  // namespace
}  // namespace lockstep::parallel
