// The cost list against the running layers: bytes kept, workspace, FLOPs.
#include "lockstep/arch/cost.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/model/model.h"
#include "support/blocks.h"
#include "support/counting_allocator.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using testing::CountingAllocator;

struct Case {
  arch::Family family = arch::Family::kGpt2;
  at::ScalarType dtype = at::kFloat;
  double dropout = 0;
  int64_t batch = 3;
  int64_t seq = 65;
  std::vector<arch::BlockSpec> blocks{};
  arch::ExpertSizes experts{};
  config::MoeSection moe{};
  arch::LatentSizes latent{};
  void (*change)(arch::ModelConfig&) = nullptr;
};

arch::ModelConfig model_of(const Case& c) {
  arch::ModelConfig model{.family = c.family,
                          .layers = 1,
                          .hidden = 96,
                          .heads = 6,
                          .kv_heads = 6,
                          .head_size = 16,
                          .ffn = 384,
                          .vocab_size = 1003,
                          .max_seq_len = 1024,
                          .dropout = c.dropout};
  if (c.family != arch::Family::kGpt2) model.kv_heads = 2, model.ffn = 200;
  model.experts = c.experts;
  model.latent = c.latent;
  if (model.has_latent()) model.kv_heads = model.heads, model.head_size = c.latent.head();
  model.blocks = c.blocks;
  if (c.change) c.change(model);
  return model;
}

// What families have beside the usual: parts of heads turned, norms over all heads, windows, sinks, other nonlinearities.
std::vector<Case> with_further_families(std::vector<Case> cases) {
  using arch::Family;
  const arch::Branch attention{.kind = "attention", .name = "attention"}, mlp{.kind = "mlp", .name = "mlp"};
  const auto behind = [](const arch::Branch& branch, bool before) { return testing::normed(branch, before, true); };
  const std::vector<arch::BlockSpec> neox = {{attention, testing::beside(mlp)}}, olmo2 = {{behind(attention, false), behind(mlp, false)}},
                                     gemma = {{behind(attention, true), behind(mlp, true)}};
  for (const bool wide : {false, true}) {
    const auto add = [&](Family family, const std::vector<arch::BlockSpec>& blocks, void (*change)(arch::ModelConfig&)) {
      cases.push_back({.family = family, .dropout = wide ? 0.1 : 0, .blocks = blocks, .change = change});
      if (wide) cases.back().dtype = at::kBFloat16, cases.back().batch = 16, cases.back().seq = 200;
    };
    add(Family::kGptNeox, neox, [](arch::ModelConfig& m) { m.kv_heads = m.heads, m.rotary_size = 4; });
    add(Family::kOlmo2, olmo2, nullptr);
    add(Family::kGemma3, gemma, [](arch::ModelConfig& m) {
      m.embedding_scale = 9.8, m.attention_scale = 0.3, m.rope_local_theta = 100;
      m.blocks[0][0].window = 7, m.blocks[0][0].rotation = arch::Rotation::kLocal;
    });
    add(Family::kLlama, {}, [](arch::ModelConfig& m) { m.attention_sinks = true, m.sliding_window = 9; });
    if (wide) continue;  // packing areas of bf16 products are known as a least size, which more than one branch hides
    add(Family::kNemotronH, {{attention}}, [](arch::ModelConfig& m) { m.attention_sinks = true; });
    add(Family::kNemotronH, {{mlp}}, nullptr);
  }
  return cases;
}

// Groups of several parts, chunks of several blocks and of a part of one, with and without a norm and biases.
std::vector<Case> with_state_spaces(std::vector<Case> cases) {
  const arch::BlockSpec ssm = {{.kind = std::string(arch::kStateSpace), .name = "ssm"}};
  const auto add = [&](void (*change)(arch::ModelConfig&)) {
    for (const bool wide : {false, true}) {
      cases.push_back({.family = arch::Family::kLlama, .dropout = wide ? 0.1 : 0, .blocks = {ssm}, .change = change});
      if (wide) cases.back().dtype = at::kBFloat16, cases.back().batch = 32, cases.back().seq = 200;  // oneDNN packs up to 0.9 MB
    }
    cases.push_back({.family = arch::Family::kLlama, .batch = 1, .seq = 700, .blocks = {ssm}, .change = change});
  };
  add([](arch::ModelConfig& m) { m.state_space = {.heads = 12, .head_size = 16, .groups = 1, .state = 32, .chunk = 256}; });
  add([](arch::ModelConfig& m) {
    m.state_space = {.heads = 12, .head_size = 10, .groups = 3, .state = 20, .chunk = 50, .norm_groups = 4, .convolution_bias = false};
  });
  add([](arch::ModelConfig& m) {
    m.state_space = {.heads = 6, .head_size = 16, .groups = 2, .state = 16, .chunk = 64, .norm_groups = 0, .projection_bias = true};
  });
  return cases;
}

std::vector<Case> with_other_blocks(std::vector<Case> cases) {
  for (const auto& blocks : testing::other_blocks())
    for (const double dropout : {0.0, 0.1})
      for (const arch::BlockSpec& block : blocks) cases.push_back({.dropout = dropout, .blocks = {block}});
  return cases;
}

constexpr arch::LatentSizes kLatent{.q_rank = 40, .kv_rank = 24, .nope = 16, .rope = 8, .value = 20};

// Nothing is dropped: how many rows there are is then known. Every router, with and without losses, a shared expert, a bias.
std::vector<Case> with_experts(std::vector<Case> cases) {
  using config::Balance, config::Router;
  const arch::ExpertSizes few{.count = 6, .per_token = 2, .ffn = 48},
      shared{.count = 8, .per_token = 3, .ffn = 32, .shared = 2, .router = Router::kSigmoid, .groups = 4, .top_groups = 2, .router_bias = true},
      softmax{.count = 6, .per_token = 2, .ffn = 48, .router = Router::kSoftmax},
      choice{.count = 6, .per_token = 2, .ffn = 48, .router = Router::kExpertChoice},
      biased{.count = 6, .per_token = 2, .ffn = 48, .logit_bias = true, .biases = true, .clamp = 1};
  const config::MoeSection bias{.balance = Balance::kBias, .z_coefficient = 0.01}, none{.balance = Balance::kNone};
  const auto mixtral = arch::Family::kMixtral;
  for (const double dropout : {0.0, 0.1}) {
    cases.push_back({.family = mixtral, .dropout = dropout, .experts = few, .moe = {.z_coefficient = 0.01}});
    cases.push_back({.family = mixtral, .dropout = dropout, .experts = shared, .moe = bias});
    cases.push_back({.family = mixtral, .dtype = at::kBFloat16, .dropout = dropout, .batch = 16, .seq = 200, .experts = few});
    cases.push_back({.family = mixtral, .dtype = at::kBFloat16, .dropout = dropout, .batch = 16, .seq = 200, .experts = shared, .moe = bias});
  }
  cases.push_back({.family = mixtral, .batch = 8, .seq = 256, .experts = softmax});
  cases.push_back({.family = mixtral, .experts = few, .moe = none});
  cases.push_back({.family = mixtral, .experts = choice, .moe = none});
  cases.push_back({.family = arch::Family::kQwen3Moe, .experts = shared});
  cases.push_back({.family = mixtral, .experts = biased, .moe = {.z_coefficient = 0.01}});
  cases.push_back({.family = mixtral, .dtype = at::kBFloat16, .batch = 16, .seq = 200, .experts = biased});
  return cases;
}

const std::vector<Case> kCases = with_state_spaces(with_further_families(with_experts(with_other_blocks({
    {},
    {.family = arch::Family::kLlama},
    {.dtype = at::kBFloat16, .batch = 16, .seq = 200},
    {.family = arch::Family::kLlama, .dtype = at::kBFloat16, .batch = 16, .seq = 200},
    {.dropout = 0.1},
    {.family = arch::Family::kLlama, .dropout = 0.1},
    {.batch = 1, .seq = 700},
    {.family = arch::Family::kLlama, .batch = 8, .seq = 256},
    {.dtype = at::kBFloat16, .dropout = 0.1, .batch = 16, .seq = 256},
    {.batch = 1, .seq = 1},
    {.family = arch::Family::kQwen2},
    {.family = arch::Family::kQwen3},
    {.family = arch::Family::kQwen3, .dtype = at::kBFloat16, .dropout = 0.1, .batch = 16, .seq = 200},
    {.family = arch::Family::kLlama, .latent = kLatent},
    {.family = arch::Family::kLlama, .dtype = at::kBFloat16, .dropout = 0.1, .batch = 16, .seq = 200, .latent = kLatent},
    {.family = arch::Family::kLlama, .batch = 1, .seq = 1, .latent = kLatent},
}))));

struct Measured {
  int64_t kept = 0, output = 0, forward_peak = 0, restored = 0, recompute_peak = 0, backward_peak = 0;
};

// Runs one layer alone; every number counts x and dy, which the caller holds, but RECOMPUTE's are without dy.
Measured measure(nn::Layer& whole_layer, arch::Recompute choice, const nn::Microbatch& microbatch, const at::Tensor& x,
                 bool keeps_x) {
  CountingAllocator& allocator = CountingAllocator::instance();
  testing::KeptLayer layer(whole_layer, choice);
  const int64_t x_bytes = x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
  const int64_t before = allocator.live() - x_bytes;
  allocator.reset_peak();
  at::Tensor y = layer.forward(x, microbatch);
  Measured m;
  m.forward_peak = allocator.peak() - before;
  m.output = y.defined() ? static_cast<int64_t>(y.nbytes()) : 0;  // the head has none
  m.kept = allocator.live() - before - m.output - (keeps_x ? 0 : x_bytes);
  // dy: as the engine hands it over, the only thing alive besides what was kept.
  at::Tensor dy = y.defined() ? testing::random("dy", y.sizes()).to(y.scalar_type()) : at::Tensor();
  y.reset();
  const int64_t dy_bytes = dy.defined() ? static_cast<int64_t>(dy.nbytes()) : 0;
  allocator.reset_peak();
  layer.recompute(microbatch);
  m.recompute_peak = allocator.peak() - before - dy_bytes;
  m.restored = allocator.live() - before - dy_bytes - (keeps_x ? 0 : x_bytes) - m.kept;
  allocator.reset_peak();
  const at::Tensor dx = whole_layer.backward_input(dy, layer.saved());
  whole_layer.backward_weight(layer.saved());
  m.backward_peak = allocator.peak() - before - (keeps_x ? 0 : x_bytes);
  return m;
}

struct Apart {
  int64_t held = 0, input_peak = 0, weight_peak = 0;  // the peaks count what is held; that of I x, dy and dx too
};

// I and W of one layer with other things in between, as a zero-bubble schedule runs them.
Apart measure_apart(nn::Layer& whole_layer, arch::Recompute choice, const nn::Microbatch& microbatch, at::Tensor x) {
  CountingAllocator& allocator = CountingAllocator::instance();
  testing::KeptLayer layer(whole_layer, choice);
  const int64_t before = allocator.live() - (x.defined() ? static_cast<int64_t>(x.nbytes()) : 0);
  at::Tensor y = layer.forward(x, microbatch);
  x.reset();
  at::Tensor dy = y.defined() ? testing::random("dy", y.sizes()).to(y.scalar_type()) : at::Tensor();
  y.reset();
  layer.recompute(microbatch);
  Apart m;
  allocator.reset_peak();
  at::Tensor dx = whole_layer.backward_input(dy, layer.saved());
  m.input_peak = allocator.peak() - before;
  dy.reset();
  dx.reset();
  layer.saved().loss.reset();
  m.held = allocator.live() - before;
  allocator.reset_peak();
  whole_layer.backward_weight(layer.saved());
  m.weight_peak = allocator.peak() - before;
  EXPECT_EQ(allocator.live(), before) << "W leaves nothing";
  return m;
}

void expect_within(int64_t predicted, int64_t measured, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(measured), 0.05 * static_cast<double>(measured))
      << what;
}

void compare(const Case& c, arch::Recompute choice) {
  const arch::ModelConfig model = model_of(c);
  testing::ModelParameters parameters(model, 1, c.dtype);
  const auto layers = build_layers(model, parameters, {.moe = c.moe});
  nn::Microbatch microbatch = testing::random_microbatch(model, c.batch, c.seq, 4);
  if (model.has_experts()) microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
  arch::CostInput input{.batch = c.batch, .seq_len = c.seq, .element_size = c.dtype == at::kFloat ? 4 : 2, .recompute = choice};
  input.moe = c.moe;
  for (const arch::LayerSpec& spec : arch::layer_table(model)) {
    const bool first = spec.kind == arch::LayerKind::kEmbedding, block = spec.kind == arch::LayerKind::kBlock;
    if (choice != arch::Recompute::kNone && !block) continue;
    const at::Tensor x = first ? at::Tensor() : testing::random("x", {c.batch, c.seq, model.hidden}).to(c.dtype);
    const arch::LayerCost cost = arch::layer_cost(model, spec, input);
    const Measured m = measure(*layers[static_cast<size_t>(spec.index)], choice, microbatch, x, !first);
    const std::string what = cat(spec.name, " ", arch::family_name(c.family), " ", c.dtype, " B", c.batch, " S", c.seq,
                                 c.dropout > 0 ? " dropout" : "", " recompute ", static_cast<int>(choice),
                                 model.has_experts() ? cat(" experts, router ", static_cast<int>(model.experts.router)) : "");
    EXPECT_EQ(cost.kept, m.kept) << what;
    EXPECT_EQ(cost.output, m.output) << what;
    EXPECT_EQ(cost.restored, m.restored) << what;
    expect_within(cost.kept + cost.output + cost.forward_workspace, m.forward_peak, what + " forward");
    if (choice != arch::Recompute::kNone)
      expect_within(cost.kept + cost.restored + cost.recompute_workspace, m.recompute_peak, what + " again");
    const int64_t dy = first || block ? cost.output : 0;
    const int64_t dx = first ? 0 : static_cast<int64_t>(x.nbytes());
    const int64_t all = cost.kept + cost.restored + dy;
    expect_within(all + dx + cost.backward_workspace, m.backward_peak, what + " backward");
    const Apart apart = measure_apart(*layers[static_cast<size_t>(spec.index)], choice, microbatch,
                                      x.defined() ? x.clone() : at::Tensor());
    EXPECT_EQ(cost.held, apart.held) << what;
    expect_within(all + dx + cost.input_workspace, apart.input_peak, what + " I");
    expect_within(cost.held + cost.weight_workspace, apart.weight_peak, what + " W");
  }
}

TEST(Cost, BytesAreThoseOfTheRunningLayers) {
  at::set_num_threads(1);
  for (const Case& c : kCases)
    for (const arch::Recompute choice : {arch::Recompute::kNone, arch::Recompute::kSelective, arch::Recompute::kFull})
      compare(c, choice);
}

}  // namespace
}  // namespace lockstep::model
