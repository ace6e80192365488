// Attention against softmax(q k^T) v written out for autograd.
#include "lockstep/nn/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/attention_core.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

struct Case {
  int64_t batch = 1, seq = 1, hidden = 8, heads = 2, kv_heads = 2, head_size = 4;
  bool rotary = false;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
  int64_t window = 0;
  int64_t turned = 0;  // elements of a head; 0: all
  double scale = 0;
  bool sinks = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.batch << " S" << c.seq << " D" << c.hidden << " H" << c.heads << " KV" << c.kv_heads << " K"
             << c.head_size << (c.rotary ? " rotary " : " ") << c.dtype << " window " << c.window << " turned "
             << c.turned << " scale " << c.scale << (c.sinks ? " sinks" : "");
}

constexpr double kTheta = 1000;

// x [B, S, heads, K], rotate-half of the first `turned` elements, out of place.
at::Tensor rotate(const at::Tensor& x, int64_t turned) {
  if (turned > 0 && turned < x.size(-1))
    return at::cat({rotate(x.narrow(-1, 0, turned), 0), x.narrow(-1, turned, x.size(-1) - turned)}, -1);
  const int64_t half = x.size(-1) / 2;
  at::Tensor cos = at::empty({x.size(1), 1, half});
  at::Tensor sin = at::empty({x.size(1), 1, half});
  for (int64_t s = 0; s < x.size(1); ++s) {
    for (int64_t j = 0; j < half; ++j) {
      const double angle =
          static_cast<double>(s) * std::pow(kTheta, -static_cast<double>(j) / static_cast<double>(half));
      cos[s][0][j] = std::cos(angle);
      sin[s][0][j] = std::sin(angle);
    }
  }
  const at::Tensor a = x.narrow(-1, 0, half);
  const at::Tensor b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor reference(const at::Tensor& x, const std::vector<at::Tensor>& p, const Case& c) {
  const at::Tensor projected = at::linear(x, p[0], p[1]).view({c.batch, c.seq, -1, c.head_size});
  at::Tensor q = projected.narrow(2, 0, c.heads);
  at::Tensor k = projected.narrow(2, c.heads, c.kv_heads);
  at::Tensor v = projected.narrow(2, c.heads + c.kv_heads, c.kv_heads);
  if (c.rotary) q = rotate(q, c.turned), k = rotate(k, c.turned);
  k = k.repeat_interleave(c.heads / c.kv_heads, 2);
  v = v.repeat_interleave(c.heads / c.kv_heads, 2);
  at::Tensor scores =
      at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) * (c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.head_size)));
  scores = scores + at::full({c.seq, c.seq}, -1e30).triu(1);
  if (c.window > 0) scores = scores + at::full({c.seq, c.seq}, -1e30).tril(-c.window);
  if (c.sinks) scores = at::cat({scores, p[4].view({1, -1, 1, 1}).expand({c.batch, c.heads, c.seq, 1})}, -1);
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1).narrow(-1, 0, c.seq), v.transpose(1, 2)).transpose(1, 2);
  return at::linear(mixed.reshape({c.batch, c.seq, -1}), p[2], p[3]);
}

struct Twin {
  explicit Twin(const Case& c) {
    const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_size;
    parameters = {parameter("wqkv", {width, c.hidden}, 0.4, c.dtype), parameter("bqkv", {width}, 0.4, c.dtype),
                  parameter("wo", {c.hidden, c.heads * c.head_size}, 0.4, c.dtype),
                  parameter("bo", {c.hidden}, 0.4, c.dtype)};
    if (c.sinks) parameters.push_back(parameter("sinks", {c.heads}, 1, c.dtype));
    std::optional<Rotary> rotary;
    if (c.rotary) rotary.emplace(256, c.turned > 0 ? c.turned : c.head_size, kTheta, parameters[0].value.options());
    attention = std::make_unique<Attention>(
        Attention::Shape{.heads = c.heads, .kv_heads = c.kv_heads, .head_size = c.head_size, .window = c.window, .scale = c.scale},
        std::make_unique<Linear>(parameters[0], parameters[1]), rotary,
        std::make_unique<Linear>(parameters[2], parameters[3]), nullptr, nullptr, c.sinks ? parameters[4] : Parameter());
    for (const Parameter& p : parameters) leaves.push_back(leaf(p.value));
  }
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> leaves;
  std::unique_ptr<Attention> attention;
};

const std::vector<Case> kCases = {
    {},
    {.batch = 1, .seq = 1, .rotary = true},
    {.batch = 2, .seq = 7, .hidden = 12, .heads = 3, .kv_heads = 3, .head_size = 6},
    {.batch = 2, .seq = 7, .hidden = 12, .heads = 6, .kv_heads = 2, .head_size = 4, .rotary = true},
    {.batch = 3, .seq = 33, .hidden = 20, .heads = 4, .kv_heads = 1, .head_size = 10, .rotary = true},
    // More than one block of queries and of keys, and blocks that end within; every width of a tile.
    {.batch = 1, .seq = 48, .hidden = 12, .heads = 2, .kv_heads = 1, .head_size = 16},
    {.batch = 2, .seq = 97, .hidden = 12, .heads = 2, .kv_heads = 2, .head_size = 32, .rotary = true},
    {.batch = 1, .seq = 203, .hidden = 12, .heads = 3, .kv_heads = 1, .head_size = 48, .rotary = true},
    {.batch = 1, .seq = 144, .hidden = 12, .heads = 2, .kv_heads = 2, .head_size = 64},
    {.batch = 1, .seq = 65, .hidden = 12, .heads = 2, .kv_heads = 1, .head_size = 104},
    {.batch = 1,
     .seq = 130,
     .hidden = 16,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 32,
     .dtype = at::kBFloat16,
     .bound = 0.03},
    {.batch = 2,
     .seq = 9,
     .hidden = 16,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 8,
     .rotary = true,
     .dtype = at::kBFloat16,
     .bound = 0.03},
};

// Heads of which a part is turned, another scale, sinks: over all tokens and in a window.
std::vector<Case> further_cases() {
  std::vector<Case> cases;
  for (const int64_t window : {0, 5}) {
    cases.push_back({.batch = 2, .seq = 51, .hidden = 12, .heads = 4, .kv_heads = 2, .head_size = 8, .rotary = true, .window = window, .turned = 2});
    cases.push_back({.batch = 2, .seq = 51, .hidden = 12, .heads = 4, .kv_heads = 2, .head_size = 8, .window = window, .scale = 0.6});
    cases.push_back({.batch = 2, .seq = 51, .hidden = 12, .heads = 4, .kv_heads = 2, .head_size = 8, .rotary = true, .window = window,
                     .turned = 6, .scale = 0.2, .sinks = true});
    cases.push_back({.batch = 2, .seq = 51, .hidden = 12, .heads = 4, .kv_heads = 1, .head_size = 8, .dtype = at::kBFloat16, .bound = 0.03,
                     .window = window, .sinks = true});
  }
  cases.push_back({.batch = 3, .seq = 1, .heads = 2, .kv_heads = 1, .sinks = true});
  return cases;
}

// A window as long as the sequence, and shorter ones.
std::vector<Case> cases_with_windows() {
  std::vector<Case> cases = kCases;
  for (const int64_t window : {1, 5, 64, 97}) {
    cases.push_back({.batch = 2, .seq = 97, .hidden = 12, .heads = 4, .kv_heads = 2, .head_size = 8, .rotary = true, .window = window});
  }
  for (const Case& c : further_cases()) cases.push_back(c);
  return cases;
}

TEST(Attention, MatchesAutograd) {
  for (const Case& c : cases_with_windows()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Twin twin(c);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype);
    const at::Tensor expected_x = leaf(x);
    const at::Tensor expected = reference(expected_x, twin.leaves, c);
    const at::Tensor dy = random("dy", expected.sizes()).to(c.dtype);
    expected.backward(dy.to(at::kFloat));

    Attention::Saved saved;
    expect_close(twin.attention->forward(x, nullptr), expected, "y without saved", c.bound);
    expect_close(twin.attention->forward(x, &saved), expected, "y", c.bound);
    expect_close(twin.attention->backward_input(dy, saved), expected_x.grad(), "dx", c.bound);
    for (const Parameter& p : twin.parameters) EXPECT_EQ(p.grad.abs().max().item<double>(), 0) << "I touched W";
    twin.attention->backward_weight(saved);
    for (size_t i = 0; i < twin.leaves.size(); ++i) {
      // One position attends to itself alone: the gradients of q and k are zero but for rounding.
      expect_close(twin.parameters[i].grad, twin.leaves[i].grad(), cat("gradient ", i), c.bound);
    }
  }
}

TEST(Attention, DecodingGivesWhatForwardGives) {
  for (const Case& c : cases_with_windows()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Twin twin(c);
    const at::Tensor x = random("x", {c.batch, c.seq, c.hidden}).to(c.dtype);
    const at::Tensor expected = twin.attention->forward(x, nullptr);
    const auto empty = [&] { return at::empty({c.batch, c.kv_heads, c.seq + 3, c.head_size}, x.options()); };
    const KvCacheLayer cache{.k = empty(), .v = empty()};
    const int64_t prompt = (c.seq + 1) / 2;
    const auto part = [](const at::Tensor& t, int64_t begin, int64_t size) {
      return t.narrow(1, begin, size).contiguous();
    };
    const auto spans_at = [&](int64_t start) {
      std::vector<CacheSpan> spans;
      for (int64_t b = 0; b < c.batch; ++b) spans.push_back({.slot = b, .start = start});
      return spans;
    };
    expect_close(twin.attention->decode(part(x, 0, prompt), cache, spans_at(0)), part(expected, 0, prompt), "prompt", c.bound);
    for (int64_t s = prompt; s < c.seq; ++s) {
      expect_close(twin.attention->decode(part(x, s, 1), cache, spans_at(s)), part(expected, s, 1), cat("token ", s), c.bound);
    }
    if (prompt < c.seq)
      expect_close(twin.attention->decode(part(x, prompt, c.seq - prompt), cache, spans_at(prompt)),
                   part(expected, prompt, c.seq - prompt), "several tokens behind the prompt", c.bound);
  }
}

// Values narrower than keys, which kernels of a GPU widen: kept is what is returned, and nothing beside it. On the GPU where there is one.
TEST(AttentionCore, KeepsItsOutputAsItIsReturned) {
  const at::Device device = at::hasCUDA() ? at::kCUDA : at::kCPU;
  constexpr int64_t kBatch = 2, kSeq = 7, kHeads = 3, kKey = 8, kValue = 5;
  const auto of = [&](const char* name, int64_t width) { return random(name, {kBatch, kSeq, kHeads, width}); };
  const at::Tensor q = of("q", kKey), k = of("k", kKey), v = of("v", kValue), dout = of("dout", kValue).view({kBatch, kSeq, -1});
  const auto run = [&](at::Device on) {
    const auto there = [&](const at::Tensor& x) { return x.to(on).transpose(1, 2); };
    AttentionCoreSaved saved;
    const at::Tensor out = attention_core_forward(there(q), there(k), there(v), /*causal=*/true, &saved, 0.3);
    EXPECT_TRUE(saved.out.is_alias_of(out));
    EXPECT_EQ(saved.out.storage().nbytes(), static_cast<size_t>(kBatch * kSeq * kHeads * kValue * 4));
    const AttentionCoreGrads grads{.dq = at::empty_like(q, on), .dk = at::empty_like(k, on), .dv = at::empty_like(v, on)};
    attention_core_backward(dout.to(on), saved, grads);
    return std::vector{out.cpu(), grads.dq.cpu(), grads.dk.cpu(), grads.dv.cpu()};
  };
  const std::vector<at::Tensor> found = run(device), expected = run(at::kCPU);
  for (size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i], cat("tensor ", i), 1e-5);
}

}  // namespace
}  // namespace lockstep::nn
