// Each sharded layer against its twin of nn/ with whole parameters: outputs, gradients of inputs and parameters.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/vocabulary.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using nn::Parameter;
using testing::expect_close;
using testing::parameter;
using testing::random;

// Of one microbatch; rows that the degrees do not divide, and fewer rows than ranks.
struct Rows {
  int64_t batch, seq;
  int64_t all() const { return batch * seq; }
};
constexpr int64_t kModel = 8, kOut = 15, kVocab = 37;

// Runs `body` on the ranks of groups of 2 and 4, with and without sequence parallelism, with and without overlap.
void on_groups(const std::function<void(TensorGroup&, Rows)>& body) {
  for (const int size : {2, 4})
    for (const bool sequence : {true, false})
      for (const Rows rows : {Rows{2, 7}, Rows{1, 3}}) {
        SCOPED_TRACE(cat(size, " ranks, ", rows.all(), " rows", sequence ? ", sequence parallel" : ""));
        lockstep::testing::run_ranks(size, [&](comm::World& world) {
          std::vector<int> ranks(static_cast<size_t>(size));
          std::iota(ranks.begin(), ranks.end(), 0);
          const auto communicator = world.communicator(ranks, "tp");
          TensorGroup group(*communicator, {.sequence_parallel = sequence, .overlap = size == 4});
          group.set_rows(rows.all());
          body(group, rows);
        });
      }
}

mesh::Range part_of(int64_t length, const TensorGroup& group) {
  return mesh::shard_range(length, group.size(), group.rank());
}
at::Tensor cut(const at::Tensor& whole, int64_t dim, mesh::Range range) {
  return whole.narrow(dim, range.begin, range.size()).clone(at::MemoryFormat::Contiguous);  // never a view
}
// This rank's part of a whole parameter, with a gradient of its own.
Parameter shard(const Parameter& whole, int64_t dim, const TensorGroup& group) {
  const mesh::Range range = part_of(whole.value.size(dim), group);
  return {.value = cut(whole.value, dim, range), .grad = cut(whole.grad, dim, range)};
}
Parameter copy_of(const Parameter& whole) { return {.value = whole.value, .grad = whole.grad.clone()}; }
// What this rank holds between layers: its rows, or all of them in the shape that they have.
at::Tensor between(const at::Tensor& whole, const TensorGroup& group) {
  return group.sequence_parallel() ? cut(nn::flatten_rows(whole), 0, group.local_rows(nn::flatten_rows(whole).size(0)))
                                   : whole.clone();
}
// A rank may hold no row at all.
void expect_rows(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() > 0) expect_close(actual, expected, what);
}
// The gradient of a parameter that every rank holds whole: of this rank's rows with sequence parallelism.
at::Tensor whole_gradient(const Parameter& p, TensorGroup& group) {
  const at::Tensor gradient = p.grad.clone();
  return group.sequence_parallel() ? group.all_reduce(gradient, program::named_call("test"))() : gradient;
}

TEST(ColumnParallelLinear, IsItsPartOfALinear) {
  on_groups([](TensorGroup& group, Rows rows) {
    const Parameter weight = parameter("w", {kOut, kModel}), bias = parameter("b", {kOut});
    const Parameter weight_here = shard(weight, 0, group), bias_here = shard(bias, 0, group);
    nn::Linear twin(weight, bias);
    ColumnParallelLinear layer(weight_here, bias_here, group, program::named_call("column"));
    const mesh::Range outputs = part_of(kOut, group);
    for (const char* name : {"x0", "x1"}) {  // gradients add up
      const at::Tensor x = random(name, {rows.batch, rows.seq, kModel});
      const at::Tensor dy = random("dy", {rows.batch, rows.seq, kOut});
      nn::Linear::Saved saved, twin_saved;
      const at::Tensor y = layer.forward(between(x, group), &saved);
      expect_close(nn::flatten_rows(y), nn::flatten_rows(cut(twin.forward(x, &twin_saved), 2, outputs)), "y");
      const at::Tensor dy_here = cut(dy, 2, outputs).view(y.sizes());
      expect_rows(layer.backward_input(dy_here, saved), between(twin.backward_input(dy, twin_saved), group), "dx");
      layer.backward_weight(saved);
      twin.backward_weight(twin_saved);
    }
    expect_close(weight_here.grad, cut(weight.grad, 0, outputs), "gradient of the weight");
    expect_close(bias_here.grad, cut(bias.grad, 0, outputs), "gradient of the bias");
  });
}

TEST(RowParallelLinear, AddsUpToALinearWithOneBias) {
  on_groups([](TensorGroup& group, Rows rows) {
    const Parameter weight = parameter("w", {kModel, kOut}), bias = parameter("b", {kModel});
    const Parameter weight_here = shard(weight, 1, group), bias_here = copy_of(bias);
    nn::Linear twin(weight, bias);
    RowParallelLinear layer(weight_here, bias_here, group, program::named_call("row"));
    const mesh::Range inputs = part_of(kOut, group);
    for (const char* name : {"x0", "x1"}) {
      const at::Tensor x = random(name, {rows.batch, rows.seq, kOut});
      const at::Tensor dy = random("dy", {rows.batch, rows.seq, kModel});
      const at::Tensor x_here = cut(x, 2, inputs);
      nn::Linear::Saved saved, twin_saved;
      const at::Tensor y =
          layer.forward(group.sequence_parallel() ? nn::flatten_rows(x_here) : x_here, &saved);
      expect_rows(y, between(twin.forward(x, &twin_saved), group), "y");
      const at::Tensor dx = layer.backward_input(between(dy, group), saved);
      expect_close(nn::flatten_rows(dx), nn::flatten_rows(cut(twin.backward_input(dy, twin_saved), 2, inputs)), "dx");
      layer.backward_weight(saved);
      twin.backward_weight(twin_saved);
    }
    expect_close(weight_here.grad, cut(weight.grad, 1, inputs), "gradient of the weight");
    expect_close(whole_gradient(bias_here, group), bias.grad, "gradient of the bias");
  });
}

// Tokens and targets over the whole vocabulary, its first and last id among them; one target is not counted.
nn::Microbatch microbatch(Rows rows) {
  nn::Microbatch m{.tokens = at::empty({rows.batch, rows.seq}, at::kLong),
                   .targets = at::empty({rows.batch, rows.seq}, at::kLong),
                   .step = 3,
                   .first_sample = 5};
  for (int64_t i = 0; i < rows.all(); ++i) {
    m.tokens.data_ptr<int64_t>()[i] = i * 18 % kVocab;  // 0, 18, 36, ...
    m.targets.data_ptr<int64_t>()[i] = i == 1 ? -100 : (kVocab - 1) * (i + 1) % kVocab;
  }
  return m;
}

TEST(VocabParallelEmbedding, IsAnEmbeddingWithTheSameDropout) {
  for (const bool learned : {true, false})
    on_groups([&](TensorGroup& group, Rows rows) {
      const Parameter tokens = parameter("tokens", {kVocab, kModel});
      const Parameter positions = learned ? parameter("positions", {9, kModel}) : Parameter{};
      const Parameter tokens_here = shard(tokens, 0, group);
      const Parameter positions_here = learned ? copy_of(positions) : Parameter{};
      nn::DropoutOptions dropout{.probability = 0.25, .seed = 7, .site = "embed"};
      nn::Embedding twin(tokens, positions, nn::Dropout(dropout));
      if (group.sequence_parallel()) dropout.rows_here = [&group](int64_t all) { return group.local_rows(all); };
      VocabParallelEmbedding layer(tokens_here, positions_here, nn::Dropout(dropout), group, kVocab);
      const nn::Microbatch m = microbatch(rows);
      std::unique_ptr<nn::Saved> saved, twin_saved;
      expect_rows(layer.forward({}, m, &saved), between(twin.forward({}, m, &twin_saved), group), "y");
      const at::Tensor dy = random("dy", {rows.batch, rows.seq, kModel});
      layer.backward(between(dy, group), *saved);
      twin.backward(dy, *twin_saved);
      expect_close(tokens_here.grad, cut(tokens.grad, 0, part_of(kVocab, group)), "gradient of tokens");
      if (learned) expect_close(whole_gradient(positions_here, group), positions.grad, "gradient of positions");
      expect_close(layer.embed(m.tokens, 1), twin.embed(m.tokens, 1), "of generation");
    });
}

TEST(VocabParallelEmbedding, TakesThePositionsAndTheMaskOfItsPlaces) {
  on_groups([&](TensorGroup& group, Rows rows) {
    const Parameter tokens = parameter("tokens", {kVocab, kModel}), positions = parameter("positions", {9, kModel});
    const Parameter tokens_here = shard(tokens, 0, group), positions_here = copy_of(positions);
    nn::DropoutOptions dropout{.probability = 0.25, .seed = 7, .site = "embed"};
    nn::Embedding twin(tokens, positions, nn::Dropout(dropout));
    if (group.sequence_parallel()) dropout.rows_here = [&group](int64_t all) { return group.local_rows(all); };
    VocabParallelEmbedding layer(tokens_here, positions_here, nn::Dropout(dropout), group, kVocab);
    nn::Microbatch m = microbatch(rows);
    // Every other token of sequences that are twice as long.
    const at::Tensor index = at::arange(0, 2 * rows.seq, 2, at::kLong).repeat({rows.batch, 1});
    m.places = std::make_shared<const nn::TokenPlaces>(nn::TokenPlaces{
        .length = 2 * rows.seq, .positions = index.remainder(9), .index = index.to(at::kInt), .first_seen = at::zeros_like(index, at::kInt)});
    std::unique_ptr<nn::Saved> saved, twin_saved;
    expect_rows(layer.forward({}, m, &saved), between(twin.forward({}, m, &twin_saved), group), "y");
    const at::Tensor dy = random("dy", {rows.batch, rows.seq, kModel});
    layer.backward(between(dy, group), *saved);
    twin.backward(dy, *twin_saved);
    expect_close(tokens_here.grad, cut(tokens.grad, 0, part_of(kVocab, group)), "gradient of tokens");
    expect_close(whole_gradient(positions_here, group), positions.grad, "gradient of positions");
  });
}

TEST(VocabParallelHead, HasTheWholeLossAndItsPartOfTheGradient) {
  for (const int64_t chunk_rows : {64, 4})
    on_groups([&](TensorGroup& group, Rows rows) {
      const Parameter weight = parameter("w", {kVocab, kModel}), norm = parameter("norm", {kModel});
      const Parameter weight_here = shard(weight, 0, group), norm_here = copy_of(norm);
      nn::Head twin(std::make_unique<nn::RmsNorm>(norm, 1e-5), weight, chunk_rows);
      VocabParallelHead layer(std::make_unique<nn::RmsNorm>(norm_here, 1e-5), weight_here, chunk_rows, group, kVocab);
      const at::Tensor x = random("x", {rows.batch, rows.seq, kModel});
      const nn::Microbatch m = microbatch(rows);
      std::unique_ptr<nn::Saved> saved, twin_saved;
      layer.forward(between(x, group), m, &saved);
      twin.forward(x, m, &twin_saved);
      expect_rows(layer.backward({}, *saved), between(twin.backward({}, *twin_saved), group), "dx");
      expect_close(saved->loss, twin_saved->loss, "loss");
      EXPECT_TRUE(at::equal(layer.forward(between(x, group), m, nullptr), saved->loss)) << "without gradients";
      expect_close(weight_here.grad, cut(weight.grad, 0, part_of(kVocab, group)), "gradient of the weight");
      expect_close(whole_gradient(norm_here, group), norm.grad, "gradient of the norm");
      expect_close(layer.logits(x), twin.logits(x), "of generation");
    });
}

}  // namespace
}  // namespace lockstep::parallel
