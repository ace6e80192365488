// The first and the last layer against LibTorch's autograd: embedding with dropout, head with cross-entropy.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr int64_t kVocab = 37;

// Tokens and targets of [B, S]; every third target is not counted when `ignore`.
Microbatch microbatch(int64_t batch, int64_t seq, bool ignore = false) {
  Microbatch m{.tokens = at::empty({batch, seq}, at::kLong), .targets = at::empty({batch, seq}, at::kLong)};
  const RandomStream stream(3, "tokens");
  for (int64_t i = 0; i < batch * seq; ++i) {
    m.tokens.data_ptr<int64_t>()[i] = static_cast<int64_t>(stream.bits(static_cast<uint64_t>(i)) % kVocab);
    m.targets.data_ptr<int64_t>()[i] =
        ignore && i % 3 == 1 ? -100 : static_cast<int64_t>(stream.bits(static_cast<uint64_t>(1000 + i)) % kVocab);
  }
  return m;
}

// The scale is that of the dtype: in bf16 sqrt(42) = 6.4807 is 6.46875.
TEST(Embedding, ScalesTokensAndNotPositions) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double scale = std::sqrt(42.0), rounded = dtype == at::kFloat ? static_cast<double>(static_cast<float>(scale)) : 6.46875;
    const Parameter tokens = parameter("tokens", {kVocab, 6}, 1, dtype), positions = parameter("positions", {9, 6}, 1, dtype);
    Embedding layer(tokens, positions, Dropout({}), scale);
    const Microbatch m = microbatch(3, 7);
    const at::Tensor expected_tokens = leaf(tokens.value), expected_positions = leaf(positions.value);
    const at::Tensor rows = (at::embedding(expected_tokens, m.tokens) * rounded).to(dtype).to(at::kFloat);
    const at::Tensor expected = rows + expected_positions.narrow(0, 0, 7), dy = random("dy", expected.sizes()).to(dtype);
    expected.backward(dy.to(at::kFloat));
    std::unique_ptr<Saved> saved;
    expect_close(layer.forward({}, m, &saved), expected.to(dtype), "y", 1e-7);
    layer.backward_input(dy, *saved);
    layer.backward_weight(*saved);
    expect_close(tokens.grad, expected_tokens.grad(), "tokens", dtype == at::kFloat ? 1e-6 : 0.01);
    expect_close(positions.grad, expected_positions.grad(), "positions", 1e-6);
  }
}

TEST(Embedding, MatchesAutogradWithAndWithoutPositions) {
  for (const bool learned : {true, false}) {
    for (const int64_t seq : {1, 7}) {
      const Parameter tokens = parameter("tokens", {kVocab, 6});
      const Parameter positions = learned ? parameter("positions", {9, 6}) : Parameter{};
      Embedding layer(tokens, positions, Dropout({}));
      const at::Tensor expected_tokens = leaf(tokens.value);
      const at::Tensor expected_positions = learned ? leaf(positions.value) : at::Tensor();
      for (const int64_t batch : {1, 3}) {  // two microbatches: gradients add up
        const Microbatch m = microbatch(batch, seq);
        at::Tensor expected = at::embedding(expected_tokens, m.tokens);
        if (learned) expected = expected + expected_positions.narrow(0, 0, seq);
        const at::Tensor dy = random("dy", expected.sizes());
        expected.backward(dy);
        std::unique_ptr<Saved> saved;
        expect_close(layer.forward({}, m, &saved), expected, "y", 0);
        EXPECT_FALSE(layer.backward_input(dy, *saved).defined());
        layer.backward_weight(*saved);
      }
      expect_close(tokens.grad, expected_tokens.grad(), "tokens");
      if (learned) expect_close(positions.grad, expected_positions.grad(), "positions");
    }
  }
}

// Of the step's global batch: `batch` sequences of `seq` tokens from sequence `first` on.
Microbatch place(int64_t batch, int64_t seq, int64_t first, int64_t step = 4) {
  Microbatch m = microbatch(batch, seq);
  m.step = step;
  m.first_sample = first;
  return m;
}

TEST(Dropout, MaskIsAFunctionOfTheGlobalIndexAlone) {
  const DropoutOptions options{.probability = 0.3, .seed = 5, .site = "embed"};
  const Dropout dropout(options);
  const Microbatch whole = place(4, 5, 8);
  const at::Tensor mask = dropout.mask(whole, {4, 5, 6});
  EXPECT_TRUE(mask.narrow(0, 2, 2).equal(dropout.mask(place(2, 5, 10), {2, 5, 6})));
  EXPECT_FALSE(mask.equal(dropout.mask(place(4, 5, 8, 5), {4, 5, 6})));
  EXPECT_FALSE(mask.equal(Dropout({.probability = 0.3, .seed = 5, .site = "b"}).mask(whole, {4, 5, 6})));
  // 20 rows in three parts: 7, 7 and 6.
  for (int part = 0; part < 3; ++part) {
    DropoutOptions of_part = options;
    of_part.rows_here = [part](int64_t rows) { return mesh::padded_range(rows, 3, part); };
    const int64_t size = part < 2 ? 7 : 6;
    EXPECT_TRUE(mask.view({20, 6}).narrow(0, 7 * part, size).equal(Dropout(of_part).mask(whole, {size, 6}))) << part;
  }
  const double share = dropout.mask(place(8, 100, 8), {8, 100, 100}).to(at::kFloat).mean().item<double>();
  EXPECT_NEAR(share, 0.7, 0.01);  // standard deviation 0.0016
}

// Of sequences of `seq` tokens those at `places`, the same of each sequence, with position places % 7.
std::shared_ptr<const TokenPlaces> at_places(int64_t batch, int64_t seq, const std::vector<int64_t>& places) {
  const at::Tensor index = at::tensor(places, at::kLong).repeat({batch, 1});
  return std::make_shared<const TokenPlaces>(
      TokenPlaces{.length = seq, .positions = index.remainder(7), .index = index.to(at::kInt), .first_seen = at::zeros_like(index, at::kInt)});
}

TEST(Embedding, TakesThePositionsOfItsPlaces) {
  const Parameter tokens = parameter("tokens", {kVocab, 6}), positions = parameter("positions", {9, 6});
  Embedding layer(tokens, positions, Dropout({}));
  const at::Tensor expected_tokens = leaf(tokens.value), expected_positions = leaf(positions.value);
  for (const std::vector<int64_t>& places : {std::vector<int64_t>{0, 1, 6, 7, 8}, {2, 3, 4, 5, 14}}) {
    Microbatch m = microbatch(3, 5);
    m.places = at_places(3, 9, places);
    const at::Tensor expected = at::embedding(expected_tokens, m.tokens) + at::embedding(expected_positions, m.places->positions);
    const at::Tensor dy = random("dy", expected.sizes());
    expected.backward(dy);
    std::unique_ptr<Saved> saved;
    expect_close(layer.forward({}, m, &saved), expected, "y", 0);
    expect_close(layer.embed(m.tokens, m.places->positions), expected, "of generation", 0);
    layer.backward_input(dy, *saved);
    layer.backward_weight(*saved);
  }
  expect_close(tokens.grad, expected_tokens.grad(), "tokens");
  expect_close(positions.grad, expected_positions.grad(), "positions");
}

// Of a step's whole sequences a rank of cp has some tokens, and tp cuts their rows once more.
TEST(Dropout, MaskOfAPartIsThePartOfTheMask) {
  const DropoutOptions options{.probability = 0.3, .seed = 5, .site = "embed"};
  for (const int64_t width : {6, 8}) {  // 6: rows begin inside a draw of four numbers
    const at::Tensor whole = Dropout(options).mask(place(3, 9, 8), {3, 9, width});
    for (const std::vector<int64_t>& places : {std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 7, 8}, {2, 4, 5}}) {
      const auto here = static_cast<int64_t>(places.size());
      Microbatch m = place(3, here, 8);
      m.places = at_places(3, 9, places);
      const at::Tensor expected = whole.index_select(1, at::tensor(places, at::kLong));
      EXPECT_TRUE(Dropout(options).mask(m, {3, here, width}).equal(expected));
      DropoutOptions of_rows = options;
      of_rows.rows_here = [](int64_t) { return mesh::Range{2, 7}; };
      EXPECT_TRUE(Dropout(of_rows).mask(m, {5, width}).equal(expected.view({-1, width}).narrow(0, 2, 5)));
      // What the layer itself does.
      Dropout::Saved saved;
      Dropout(options).redraw(at::empty({3, here, width}, at::kFloat), m, saved);
      EXPECT_TRUE(saved.mask.equal(expected));
    }
  }
}

TEST(Dropout, ForwardAndBackwardUseOneMask) {
  const Dropout dropout({.probability = 0.3, .seed = 5, .site = "embed"});
  const Microbatch m = place(2, 7, 8);
  const at::Tensor x = leaf(random("x", {2, 7, 6}));
  const at::Tensor expected = x * dropout.mask(m, x.sizes()) / 0.7;
  const at::Tensor dy = random("dy", x.sizes());
  expected.backward(dy);
  Dropout::Saved saved;
  expect_close(dropout.forward(x.detach().clone(), m, &saved), expected, "y");
  expect_close(dropout.backward(dy, saved), x.grad(), "dx");
  EXPECT_FALSE(saved.mask.defined());
}

struct HeadCase {
  int64_t batch = 1, seq = 1;
  bool ignore = false;
  int64_t chunk_rows = 1000;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

TEST(Head, LossAndGradientsMatchAutograd) {
  for (const HeadCase& c : std::vector<HeadCase>{
           {},
           {.batch = 2, .seq = 7},
           {.batch = 2, .seq = 7, .ignore = true},
           {.batch = 3, .seq = 7, .ignore = true, .chunk_rows = 4},
           {.batch = 3, .seq = 7, .ignore = true, .chunk_rows = 21},
           {.batch = 3, .seq = 7, .ignore = true, .chunk_rows = 4, .dtype = at::kBFloat16, .bound = 0.02}}) {
    SCOPED_TRACE(cat("B", c.batch, " S", c.seq, " chunk ", c.chunk_rows, c.ignore ? " ignored" : "", " ", c.dtype));
    const std::vector<Parameter> parameters = {parameter("norm.w", {12}, 1, c.dtype),
                                               parameter("norm.b", {12}, 1, c.dtype),
                                               parameter("w", {kVocab, 12}, 0.5, c.dtype)};
    Head head(std::make_unique<LayerNorm>(parameters[0], parameters[1], 1e-5), parameters[2], c.chunk_rows);
    std::vector<at::Tensor> leaves;
    for (const Parameter& p : parameters) leaves.push_back(leaf(p.value));
    for (const char* name : {"x0", "x1"}) {
      const Microbatch m = microbatch(c.batch, c.seq, c.ignore);
      const at::Tensor x = random(name, {c.batch, c.seq, 12}).to(c.dtype);
      const at::Tensor expected_x = leaf(x);
      const at::Tensor logits = at::linear(at::layer_norm(expected_x, {12}, leaves[0], leaves[1], 1e-5), leaves[2]);
      const at::Tensor expected =
          at::cross_entropy_loss(logits.view({-1, kVocab}), m.targets.view({-1}), {}, at::Reduction::Sum, -100);
      expected.backward();

      std::unique_ptr<Saved> saved;
      expect_close(head.logits(x), logits, "logits", c.bound);
      expect_close(head.forward(x, m, nullptr), expected, "loss without saved", c.bound);
      EXPECT_FALSE(head.forward(x, m, &saved).defined()) << "the loss comes with the gradients";
      expect_close(head.backward_input({}, *saved), expected_x.grad(), "dx", c.bound);
      expect_close(saved->loss, expected, "loss", c.bound);
      head.backward_weight(*saved);
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      expect_close(parameters[i].grad, leaves[i].grad(), cat("gradient ", i), c.bound);
    }
  }
}

TEST(Head, AllTargetsIgnoredIsNothing) {
  const std::vector<Parameter> parameters = {parameter("norm.w", {12}), parameter("norm.b", {12}),
                                             parameter("w", {kVocab, 12})};
  Head head(std::make_unique<LayerNorm>(parameters[0], parameters[1], 1e-5), parameters[2], 8);
  Microbatch m = microbatch(2, 7);
  m.targets.fill_(-100);
  std::unique_ptr<Saved> saved;
  head.forward(random("x", {2, 7, 12}), m, &saved);
  EXPECT_EQ(head.backward_input({}, *saved).abs().max().item<float>(), 0);
  EXPECT_EQ(saved->loss.item<float>(), 0);
  head.backward_weight(*saved);
  for (const Parameter& p : parameters) EXPECT_EQ(p.grad.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace lockstep::nn
