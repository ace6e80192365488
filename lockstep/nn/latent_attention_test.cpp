// Latent attention against the same written out for autograd; generation from latents against keys and values.
#include "lockstep/nn/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/text.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

struct Case {
  int64_t batch = 2, seq = 7, hidden = 12, heads = 3;
  arch::LatentSizes sizes{.q_rank = 10, .kv_rank = 6, .nope = 4, .rope = 4, .value = 5};
  double scale = 0.4;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " S" << c.seq << " H" << c.heads << " N" << c.sizes.nope << " R" << c.sizes.rope << " V"
             << c.sizes.value << (c.sizes.interleaved ? " pairs " : " halves ") << c.dtype;
}

constexpr double kTheta = 100;

const std::vector<Case> kCases = {
    {},
    {.batch = 1, .seq = 1},
    {.sizes = {.q_rank = 10, .kv_rank = 6, .nope = 4, .rope = 4, .value = 5, .interleaved = false}},
    // Values wider than keys, and more than one block of both.
    {.seq = 50, .heads = 2, .sizes = {.q_rank = 7, .kv_rank = 40, .nope = 3, .rope = 2, .value = 20}},
    {.batch = 1, .seq = 101, .heads = 2, .sizes = {.q_rank = 20, .kv_rank = 16, .nope = 32, .rope = 16, .value = 32}, .scale = 0.2},
    {.batch = 1, .seq = 60, .heads = 1, .sizes = {.q_rank = 20, .kv_rank = 36, .nope = 16, .rope = 18, .value = 16}, .scale = 0.1},
    {.seq = 21, .sizes = {.q_rank = 16, .kv_rank = 24, .nope = 16, .rope = 8, .value = 16}, .scale = 0.2, .dtype = at::kBFloat16,
     .bound = 0.03},
};

enum Of { kDown, kQNorm, kKvNorm, kQUp, kKvUp, kOut, kCount };

struct Twin {
  explicit Twin(const Case& c) {
    const arch::LatentSizes& s = c.sizes;
    parameters = {parameter("down", {s.projected(), c.hidden}, 0.4, c.dtype),
                  parameter("q_norm", {s.q_rank}, 1, c.dtype),
                  parameter("kv_norm", {s.kv_rank}, 1, c.dtype),
                  parameter("q_up", {c.heads * s.head(), s.q_rank}, 0.4, c.dtype),
                  parameter("kv_up", {c.heads * (s.nope + s.value), s.kv_rank}, 0.4, c.dtype),
                  parameter("out", {c.hidden, c.heads * s.value}, 0.4, c.dtype)};
    const auto linear = [&](Of of) { return std::make_unique<Linear>(parameters[of]); };
    attention = std::make_unique<LatentAttention>(
        LatentAttention::Shape{.sizes = s, .heads = c.heads, .scale = c.scale},
        LatentAttention::Parts{.down = linear(kDown),
                               .q_norm = RmsNorm(parameters[kQNorm], arch::kLatentNormEps),
                               .kv_norm = RmsNorm(parameters[kKvNorm], arch::kLatentNormEps),
                               .q_up = linear(kQUp),
                               .kv_up = linear(kKvUp),
                               .kv_weight = parameters[kKvUp].value,
                               .out = linear(kOut),
                               .rotary = Rotary(256, s.rope, kTheta, parameters[kDown].value.options()),
                               .keys = std::make_unique<SharedRows>()});
    for (const Parameter& p : parameters) leaves.push_back(leaf(p.value));
  }
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> leaves;
  std::unique_ptr<LatentAttention> attention;
};

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean(-1, /*keepdim=*/true) + arch::kLatentNormEps).rsqrt() * weight;
}

// x [B, S, heads, R]; neighbours turn together, or the halves.
at::Tensor rotate(const at::Tensor& x, bool pairs) {
  const int64_t half = x.size(3) / 2;
  at::Tensor cos = at::empty({x.size(1), 1, half}), sin = at::empty({x.size(1), 1, half});
  for (int64_t s = 0; s < x.size(1); ++s)
    for (int64_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(s) * std::pow(kTheta, -static_cast<double>(j) / static_cast<double>(half));
      cos[s][0][j] = std::cos(angle);
      sin[s][0][j] = std::sin(angle);
    }
  const at::Tensor apart = pairs ? x.unflatten(3, {half, 2}).transpose(3, 4) : x.unflatten(3, {2, half});
  const at::Tensor a = apart.select(3, 0), b = apart.select(3, 1);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor reference(const at::Tensor& x, const std::vector<at::Tensor>& p, const Case& c) {
  const arch::LatentSizes& s = c.sizes;
  const at::Tensor z = at::linear(x, p[kDown]);
  const at::Tensor q = at::linear(norm(z.narrow(2, 0, s.q_rank), p[kQNorm]), p[kQUp]).view({c.batch, c.seq, c.heads, -1});
  const at::Tensor kv = at::linear(norm(z.narrow(2, s.q_rank, s.kv_rank), p[kKvNorm]), p[kKvUp]).view({c.batch, c.seq, c.heads, -1});
  const at::Tensor key = rotate(z.narrow(2, s.q_rank + s.kv_rank, s.rope).unsqueeze(2), s.interleaved);
  const at::Tensor queries = at::cat({q.narrow(3, 0, s.nope), rotate(q.narrow(3, s.nope, s.rope), s.interleaved)}, 3);
  const at::Tensor keys = at::cat({kv.narrow(3, 0, s.nope), key.expand({-1, -1, c.heads, -1})}, 3);
  at::Tensor scores = at::matmul(queries.transpose(1, 2), keys.permute({0, 2, 3, 1})) * c.scale;
  scores = scores + at::full({c.seq, c.seq}, -1e30).triu(1);
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1), kv.narrow(3, s.nope, s.value).transpose(1, 2)).transpose(1, 2);
  return at::linear(mixed.reshape({c.batch, c.seq, -1}), p[kOut]);
}

TEST(LatentAttention, MatchesAutograd) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Twin twin(c);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype);
    const at::Tensor expected_x = leaf(x);
    const at::Tensor expected = reference(expected_x, twin.leaves, c);
    const at::Tensor dy = random("dy", expected.sizes()).to(c.dtype);
    expected.backward(dy.to(at::kFloat));

    LatentAttention::Saved saved;
    expect_close(twin.attention->forward(x, nullptr), expected, "y without saved", c.bound);
    expect_close(twin.attention->forward(x, &saved), expected, "y", c.bound);
    expect_close(twin.attention->backward_input(dy, saved), expected_x.grad(), "dx", c.bound);
    for (const Parameter& p : twin.parameters) EXPECT_EQ(p.grad.abs().max().item<double>(), 0) << "I touched W";
    twin.attention->backward_weight(saved);
    for (size_t i = 0; i < kCount; ++i) {
      const bool scores_alone = i == kQNorm || i == kQUp;  // one position attends to itself: zero but for rounding
      if (c.seq > 1 || !scores_alone) expect_close(twin.parameters[i].grad, twin.leaves[i].grad(), cat("gradient ", i), c.bound);
    }
  }
}

TEST(LatentAttention, RecomputesTheSameBits) {
  const Case c;
  Twin twin(c);
  const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}), dy = random("dy", x.sizes());
  const auto gradients = [&](const std::function<void(LatentAttention::Saved&)>& keep) {
    for (const Parameter& p : twin.parameters) p.grad.zero_();
    LatentAttention::Saved saved;
    keep(saved);
    std::vector<at::Tensor> all = {twin.attention->start_backward_input(dy, saved)()};
    twin.attention->backward_weight(saved);
    for (const Parameter& p : twin.parameters) all.push_back(p.grad.clone());
    return all;
  };
  const Sequences sequences{.count = c.batch, .length = c.seq, .valid = {}};
  const std::vector<at::Tensor> expected = gradients([&](LatentAttention::Saved& saved) { twin.attention->forward(x, &saved, sequences); });
  const std::vector<at::Tensor> again = gradients([&](LatentAttention::Saved& saved) { twin.attention->recompute(x, saved, sequences); });
  const std::vector<at::Tensor> restored = gradients([&](LatentAttention::Saved& saved) {
    twin.attention->forward(x, &saved, sequences);
    twin.attention->forget(saved);
    twin.attention->restore(x, saved);
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(again[i], expected[i])) << i;
    EXPECT_TRUE(at::equal(restored[i], expected[i])) << i;
  }
}

std::vector<CacheSpan> spans_at(int64_t count, int64_t start) {
  std::vector<CacheSpan> spans;
  for (int64_t b = 0; b < count; ++b) spans.push_back({.slot = b, .start = start});
  return spans;
}

at::Tensor part(const at::Tensor& t, int64_t begin, int64_t size) { return t.narrow(1, begin, size).contiguous(); }

TEST(LatentAttention, DecodingFromLatentsGivesWhatForwardGives) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Twin twin(c);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype);
    const at::Tensor expected = twin.attention->forward(x, nullptr);
    const KvCacheLayer cache = twin.attention->new_cache(c.batch, c.seq + 3, x.options());
    EXPECT_EQ(cache.k.sizes(), (std::vector<int64_t>{c.batch, 1, c.seq + 3, c.sizes.kv_rank + c.sizes.rope}));
    EXPECT_TRUE(cache.k.is_same(cache.v)) << "latents are kept once";
    const int64_t prompt = (c.seq + 1) / 2;
    expect_close(twin.attention->decode(part(x, 0, prompt), cache, spans_at(c.batch, 0)), part(expected, 0, prompt), "prompt", c.bound);
    for (int64_t s = prompt; s < c.seq; ++s)
      expect_close(twin.attention->decode(part(x, s, 1), cache, spans_at(c.batch, s)), part(expected, s, 1), cat("token ", s), c.bound);
    if (prompt < c.seq)
      expect_close(twin.attention->decode(part(x, prompt, c.seq - prompt), cache, spans_at(c.batch, prompt)),
                   part(expected, prompt, c.seq - prompt), "several tokens behind the prompt", c.bound);
  }
}

TEST(LatentAttention, AQueryDoesNotSeeItsNeighboursInTheBatch) {
  const Case c{.batch = 3, .seq = 6};
  Twin twin(c);
  const at::Tensor x = random("x", {c.batch, c.seq, c.hidden});
  const KvCacheLayer all = twin.attention->new_cache(c.batch, c.seq, x.options()), alone = twin.attention->new_cache(1, c.seq, x.options());
  for (int64_t s = 0; s < c.seq; ++s) {
    const at::Tensor y = twin.attention->decode(part(x, s, 1), all, spans_at(c.batch, s));
    const at::Tensor one = twin.attention->decode(part(x, s, 1).narrow(0, 0, 1).contiguous(), alone, spans_at(1, s));
    if (s > 0) {
      EXPECT_TRUE(at::equal(y.narrow(0, 0, 1), one)) << s;
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
