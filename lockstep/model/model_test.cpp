// Whole models against the same model written with LibTorch's autograd, and against themselves: another cut of the
// batch, another dtype, token by token.
#include "lockstep/model/model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/model/test_families.h"
#include "lockstep/nn/dropout.h"
#include "support/blocks.h"
#include "support/model_parameters.h"
#include "support/tensors.h"

namespace lockstep::model {
namespace {

using arch::Family;
using testing::expect_close;
using testing::forward_backward;
using testing::ModelParameters;
using testing::random_microbatch;

constexpr uint64_t kSeed = 1234;

arch::ModelConfig model_of(Family family, bool tied, double dropout = 0) {
  arch::ModelConfig model{.family = family,
                          .layers = 2,
                          .hidden = 24,
                          .heads = 6,
                          .kv_heads = 6,
                          .head_size = 4,
                          .ffn = 40,
                          .vocab_size = 53,
                          .max_seq_len = 16,
                          .tied = tied,
                          .dropout = dropout};
  if (family != Family::kGpt2) model.kv_heads = 2, model.head_size = 6;
  return model;
}

arch::ModelConfig with_all_biases(arch::ModelConfig model) {
  model.qkv_bias = model.out_bias = model.mlp_bias = true;
  return model;
}

// The oracle: the model of the papers, out of place, over leaves of autograd.
class Reference {
 public:
  Reference(const arch::ModelConfig& model, ModelParameters& parameters) : model_(model) {
    for (const arch::ParamSpec& spec : parameters.table()) {
      leaves_[spec.name] = testing::leaf(parameters.parameter(spec.name).value);
    }
  }

  const at::Tensor& gradient(const std::string& name) { return leaves_.at(name).grad(); }

  at::Tensor logits(const nn::Microbatch& m) {
    at::Tensor x = at::embedding(leaves_.at("embed.tokens.weight"), m.tokens) * model_.embedding_scale;
    if (model_.traits().learned_positions) x = x + leaves_.at("embed.positions.weight").narrow(0, 0, m.tokens.size(1));
    x = drop(x, m, "embed");
    for (int i = 0; i < model_.layers; ++i) x = block(x, m, i);
    return at::linear(norm(x, "head.norm"), leaves_.at(model_.tied ? "embed.tokens.weight" : "head.weight")) * by_.logits;
  }

  double forward_backward(const nn::Microbatch& m) {
    const at::Tensor loss = at::cross_entropy_loss(logits(m).view({-1, model_.vocab_size}), m.targets.view({-1}), {},
                                                   at::Reduction::Sum, -100);
    loss.backward();
    return loss.item<double>();
  }

 private:
  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    const auto bias = leaves_.find(name + ".bias");
    return at::linear(x, leaves_.at(name + ".weight"), bias == leaves_.end() ? at::Tensor() : bias->second);
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    const at::Tensor weight = leaves_.at(name + ".weight");
    if (model_.traits().layer_norm)
      return at::layer_norm(x, {x.size(-1)}, weight, leaves_.at(name + ".bias"), model_.norm_eps);
    return x * at::rsqrt(x.square().mean(-1, true) + model_.norm_eps) * (model_.traits().norm_plus_one ? weight + 1 : weight);
  }
  // Of [B, S, heads, K].
  at::Tensor heads_norm(const at::Tensor& x, const std::string& name) {
    return model_.traits().whole_qk_norm ? norm(x.flatten(2), name).view(x.sizes()) : norm(x, name);
  }
  at::Tensor drop(const at::Tensor& x, const nn::Microbatch& m, const std::string& site) {
    if (model_.dropout == 0) return x;
    const nn::Dropout dropout({.probability = model_.dropout, .seed = kSeed, .site = site});
    return x * dropout.mask(m, x.sizes()) / (1 - model_.dropout);
  }
  at::Tensor rotate(const at::Tensor& heads, double theta) {  // [B, S, heads, K]
    const int64_t turned = model_.rotary_size > 0 ? model_.rotary_size : model_.head_size, half = turned / 2;
    const at::Tensor x = heads.narrow(-1, 0, turned);
    at::Tensor angle = at::empty({x.size(1), 1, half}, at::kDouble);
    for (int64_t s = 0; s < x.size(1); ++s) {
      for (int64_t j = 0; j < half; ++j) {
        angle[s][0][j] =
            static_cast<double>(s) * std::pow(theta, -static_cast<double>(j) / static_cast<double>(half));
      }
    }
    const at::Tensor cos = angle.cos().to(at::kFloat);
    const at::Tensor sin = angle.sin().to(at::kFloat);
    const at::Tensor a = x.narrow(-1, 0, half);
    const at::Tensor b = x.narrow(-1, half, half);
    return at::cat({a * cos - b * sin, b * cos + a * sin, heads.narrow(-1, turned, model_.head_size - turned)}, -1);
  }
  at::Tensor attention(const arch::Branch& branch, const at::Tensor& x, const std::string& name) {
    const auto heads = [&](const char* part) {
      return linear(x * by_.attention_in, name + part).view({x.size(0), x.size(1), -1, model_.head_size});
    };
    at::Tensor q = heads(".q"), k = heads(".k") * by_.key, v = heads(".v");
    if (model_.qk_norm) q = heads_norm(q, name + ".q_norm"), k = heads_norm(k, name + ".k_norm");
    const double theta = branch.rotation == arch::Rotation::kLocal ? model_.rope_local_theta : model_.rope_theta;
    if (!model_.traits().learned_positions && branch.rotation != arch::Rotation::kNone) q = rotate(q, theta), k = rotate(k, theta);
    const int64_t group = model_.heads / model_.kv_heads;
    k = k.repeat_interleave(group, 2).permute({0, 2, 3, 1});
    v = v.repeat_interleave(group, 2).transpose(1, 2);
    const double scale = model_.attention_scale > 0 ? model_.attention_scale : 1 / std::sqrt(static_cast<double>(model_.head_size));
    const int64_t length = x.size(1), window = branch.window.value_or(model_.sliding_window);
    at::Tensor scores = at::matmul(q.transpose(1, 2), k) * scale + at::full({length, length}, -1e30).triu(1);
    if (window > 0) scores = scores + at::full({length, length}, -1e30).tril(-window);
    if (model_.attention_sinks)
      scores = at::cat({scores, leaves_.at(name + ".sinks.weight").view({1, -1, 1, 1}).expand({x.size(0), model_.heads, length, 1})}, -1);
    const at::Tensor p = at::softmax(scores, -1).narrow(-1, 0, length);
    return linear(at::matmul(p, v).transpose(1, 2).reshape({x.size(0), x.size(1), -1}), name + ".out") * by_.attention_out;
  }
  at::Tensor block(at::Tensor x, const nn::Microbatch& m, int index) {
    at::Tensor y = x, read;  // y: x and all sums
    for (const arch::Branch& branch : arch::block_branches(model_, index + 1)) {
      const std::string name = cat("blocks.", index, ".", branch.name);
      if (!branch.beside) x = y;
      if (!branch.shares_input()) read = branch.norm_before ? norm(x, name + "_norm") : x;
      const at::Tensor made = inside(branch, read, name);
      y = y + drop(branch.norm_behind ? norm(made, name + "_post_norm") : made, m, name);
    }
    return y;
  }
  at::Tensor inside(const arch::Branch& branch, const at::Tensor& x, const std::string& name) {
    if (branch.kind == "square") return linear(linear(x, name + ".in").square(), name + ".out");
    return branch.kind == "mlp" ? mlp(x, name) : attention(branch, x, name);
  }
  at::Tensor mlp(const at::Tensor& x, const std::string& name) {
    const at::Tensor up = linear(x, name + ".up");
    const auto gate = [&] { return linear(x, name + ".gate") * by_.gate; };
    using enum arch::Activation;
    switch (model_.activation) {
      case kGeluTanh:
        return linear(at::gelu(up, "tanh"), name + ".down");
      case kGelu:
        return linear(at::gelu(up), name + ".down");
      case kRelu2:
        return linear(at::relu(up).square(), name + ".down");
      case kSwiGlu:
        return linear(at::silu(gate()) * up, name + ".down") * by_.down;
      case kGeGlu:
        return linear(at::gelu(gate(), "tanh") * up, name + ".down");
    }
    return {};
  }

  arch::ModelConfig model_;
  const arch::Multipliers by_ = model_.multipliers;
  std::map<std::string, at::Tensor> leaves_;
};

std::string title(const arch::ModelConfig& model) {
  return cat(arch::family_name(model.family), model.tied ? " tied" : " untied", " dropout ", model.dropout,
             model.blocks.empty() ? "" : cat(" blocks from ", model.blocks[0][0].name, ", ", model.blocks[0].size()));
}

std::vector<arch::ModelConfig> with_other_blocks(std::vector<arch::ModelConfig> models) {
  for (const auto& blocks : testing::other_blocks()) {
    models.push_back(testing::with_blocks(model_of(Family::kLlama, false), blocks));
    models.push_back(testing::with_blocks(model_of(Family::kGpt2, true, 0.2), blocks));
  }
  for (const arch::ModelConfig& model : testing::further_families([](Family family) { return model_of(family, false, 0); })) models.push_back(model);
  models.push_back(with_all_biases(models.back()));
  models.back().dropout = 0.2;
  return models;
}

const std::vector<arch::ModelConfig> kModels = with_other_blocks({
    model_of(Family::kGpt2, true),   model_of(Family::kGpt2, false),     model_of(Family::kLlama, true),
    model_of(Family::kLlama, false), model_of(Family::kGpt2, true, 0.2), model_of(Family::kLlama, false, 0.2),
    model_of(Family::kQwen2, true),  model_of(Family::kQwen3, false),
    with_all_biases(model_of(Family::kQwen3, true, 0.2))});

TEST(Model, LossAndGradientsOfTwoMicrobatchesMatchAutograd) {
  for (const arch::ModelConfig& model : kModels) {
    for (const int64_t seq : {1, 7}) {
      SCOPED_TRACE(cat(title(model), " S", seq));
      ModelParameters parameters(model, kSeed);
      Reference reference(model, parameters);
      const auto layers = build_layers(model, parameters, {.seed = kSeed});
      nn::Microbatch first = random_microbatch(model, 2, seq, /*ignore_every=*/3, "first");
      nn::Microbatch second = random_microbatch(model, 3, seq, /*ignore_every=*/4, "second");
      first.step = second.step = 11;
      second.first_sample = 2;
      for (const nn::Microbatch& m : {first, second}) {
        const double expected = reference.forward_backward(m);
        EXPECT_NEAR(forward_backward(layers, m), expected, 1e-5 * expected);
      }
      for (const arch::ParamSpec& spec : parameters.table()) {
        // Mathematically zero, so nothing but rounding: the bias of keys; of one position, all of q and k.
        const bool zero = spec.name.ends_with("attention.k.bias") ||
                          (seq == 1 && (spec.name.find("attention.q") != std::string::npos ||
                                        spec.name.find("attention.k") != std::string::npos));
        if (zero) continue;
        expect_close(parameters.parameter(spec.name).grad, reference.gradient(spec.name), spec.name);
      }
    }
  }
}

TEST(Model, AnyCutOfTheBatchGivesTheSameSums) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen3}) {
    const arch::ModelConfig model = model_of(family, true, 0.2);
    const nn::Microbatch whole = random_microbatch(model, 4, 7, 3);
    const auto part = [&](int64_t begin, int64_t size) {
      return nn::Microbatch{.tokens = whole.tokens.narrow(0, begin, size),
                            .targets = whole.targets.narrow(0, begin, size),
                            .first_sample = begin};
    };
    ModelParameters at_once(model, kSeed), in_parts(model, kSeed);
    const double expected = forward_backward(build_layers(model, at_once, {.seed = kSeed}), whole);
    const auto layers = build_layers(model, in_parts, {.seed = kSeed});
    const double loss = forward_backward(layers, part(0, 1)) + forward_backward(layers, part(1, 3));
    EXPECT_NEAR(loss, expected, 1e-5 * expected);
    for (const arch::ParamSpec& spec : at_once.table()) {
      if (spec.name.ends_with("attention.k.bias")) continue;  // zero but for rounding
      expect_close(in_parts.parameter(spec.name).grad, at_once.parameter(spec.name).grad, spec.name);
    }
  }
}

// What recomputation relies on: forward without keeping, then again with.
TEST(Model, ForwardGivesTheSameBitsWhetherItKeepsOrNot) {
  for (const arch::ModelConfig& model : kModels) {
    SCOPED_TRACE(title(model));
    ModelParameters parameters(model, kSeed);
    const auto layers = build_layers(model, parameters, {});
    const nn::Microbatch m = random_microbatch(model, 2, 7);
    at::Tensor x;
    for (size_t i = 0; i + 1 < layers.size(); ++i) {
      std::unique_ptr<nn::Saved> saved;
      const at::Tensor kept = layers[i]->forward(x, m, &saved);
      x = layers[i]->forward(x, m, nullptr);
      EXPECT_TRUE(x.equal(kept)) << "layer " << i;
    }
  }
}

TEST(Model, InputBackwardLeavesWeightGradientsAlone) {
  const arch::ModelConfig model = model_of(Family::kLlama, false);
  ModelParameters parameters(model, kSeed);
  const auto layers = build_layers(model, parameters, {});
  const nn::Microbatch m = random_microbatch(model, 2, 7);
  std::vector<std::unique_ptr<nn::Saved>> saved(layers.size());
  at::Tensor x;
  for (size_t i = 0; i < layers.size(); ++i) x = layers[i]->forward(x, m, &saved[i]);
  at::Tensor dy;
  for (size_t i = layers.size(); i-- > 0;) dy = layers[i]->backward_input(dy, *saved[i]);
  for (const arch::ParamSpec& spec : parameters.table()) {
    if (spec.name == "head.weight") continue;  // made with the loss
    EXPECT_EQ(parameters.parameter(spec.name).grad.abs().max().item<double>(), 0) << spec.name;
  }
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->backward_weight(*saved[i]);  // in any order
  ModelParameters at_once(model, kSeed);
  forward_backward(build_layers(model, at_once, {}), m);
  for (const arch::ParamSpec& spec : parameters.table()) {
    EXPECT_TRUE(parameters.parameter(spec.name).grad.equal(at_once.parameter(spec.name).grad)) << spec.name;
  }
}

TEST(Model, DropoutIsOffWhenNotTraining) {
  const arch::ModelConfig model = model_of(Family::kGpt2, true, 0.5);
  ModelParameters parameters(model, kSeed);
  const nn::Microbatch m = random_microbatch(model, 2, 7);
  const auto loss = [&](const arch::ModelConfig& config, bool training) {
    at::Tensor x;
    for (const auto& layer : build_layers(config, parameters, {.training = training}))
      x = layer->forward(x, m, nullptr);
    return x.item<double>();
  };
  EXPECT_EQ(loss(model, false), loss(model_of(Family::kGpt2, true), true));
  EXPECT_NE(loss(model, true), loss(model, false));
}

// bf16 has 8 bits; the error of a gradient through two blocks stays within a few of them.
TEST(Model, Bf16FollowsFp32) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2, Family::kQwen3}) {
    const arch::ModelConfig model = model_of(family, true);
    ModelParameters exact(model, kSeed), rounded(model, kSeed, at::kBFloat16);
    for (const arch::ParamSpec& spec : exact.table()) {
      exact.parameter(spec.name).value.copy_(rounded.parameter(spec.name).value);
    }
    const nn::Microbatch m = random_microbatch(model, 3, 9, 4);
    const double expected = forward_backward(build_layers(model, exact, {}), m);
    EXPECT_NEAR(forward_backward(build_layers(model, rounded, {}), m), expected, 1e-3 * expected);
    for (const arch::ParamSpec& spec : exact.table()) {
      if (spec.name.ends_with("attention.k.bias")) continue;  // zero but for rounding
      expect_close(rounded.parameter(spec.name).grad, exact.parameter(spec.name).grad, spec.name, 0.05);
    }
  }
}

TEST(Decoder, TokenByTokenGivesTheLogitsOfTheWholeText) {
  for (const arch::ModelConfig& model : kModels) {
    SCOPED_TRACE(title(model));
    ModelParameters parameters(model, kSeed);
    arch::ModelConfig without_dropout = model;
    without_dropout.dropout = 0;
    Reference reference(without_dropout, parameters);
    const nn::Microbatch m = random_microbatch(model, 3, 11);
    const at::Tensor expected = reference.logits(m);
    Decoder decoder(model, parameters);
    KvCache cache = decoder.new_cache(/*slots=*/4, /*capacity=*/11);
    const std::vector<int64_t> slots = {2, 0, 3};
    expect_close(decoder.append(m.tokens.narrow(1, 0, 4), slots, cache), expected.select(1, 3), "prompt");
    for (int64_t s = 4; s < 11; ++s) {
      expect_close(decoder.append(m.tokens.narrow(1, s, 1), slots, cache), expected.select(1, s), cat("token ", s));
    }
    EXPECT_EQ(cache.length(0), 11);
    EXPECT_EQ(cache.length(1), 0);
    EXPECT_THROW(decoder.append(m.tokens.narrow(1, 0, 1), slots, cache), InternalError);
    cache.truncate(0, 5);  // slot 0 holds sequence 1
    expect_close(decoder.append(m.tokens.narrow(0, 1, 1).narrow(1, 5, 4), std::vector<int64_t>{0}, cache),
                 expected.narrow(0, 1, 1).select(1, 8), "several tokens behind a prefix");
  }
}

TEST(Decoder, ASequenceGivesTheSameBitsAloneAndBesideOthers) {
  for (const arch::ModelConfig& model : kModels) {
    SCOPED_TRACE(title(model));
    ModelParameters parameters(model, kSeed);
    Decoder decoder(model, parameters);
    const nn::Microbatch m = random_microbatch(model, 3, 9);
    const std::vector<int64_t> slots = {0, 1, 2}, alone = {0}, lengths = {1, 5, 3};
    KvCache together = decoder.new_cache(3, 11);
    for (const int64_t slot : slots)
      decoder.append(m.tokens.narrow(0, slot, 1).narrow(1, 0, lengths[static_cast<size_t>(slot)]),
                     std::vector<int64_t>{slot}, together);
    const at::Tensor next = m.tokens.narrow(1, 8, 1);
    const at::Tensor logits = decoder.append(next, slots, together);
    for (const int64_t slot : slots) {
      KvCache cache = decoder.new_cache(1, 11);
      decoder.append(m.tokens.narrow(0, slot, 1).narrow(1, 0, lengths[static_cast<size_t>(slot)]), alone, cache);
      const at::Tensor expected = decoder.append(next.narrow(0, slot, 1), alone, cache);
      EXPECT_TRUE(at::equal(logits.narrow(0, slot, 1), expected)) << slot;
    }
  }
}

TEST(InitialValues, AreAFunctionOfTheGlobalIndex) {
  const std::vector<arch::ParamSpec> table = arch::param_table(model_of(Family::kGpt2, true));
  for (const arch::ParamSpec& spec : table) {
    std::vector<float> whole(static_cast<size_t>(spec.numel()));
    initial_values(spec, 5, 0, whole);
    std::vector<float> part(whole.size() - whole.size() / 3);
    initial_values(spec, 5, static_cast<int64_t>(whole.size() / 3), part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(whole.size() / 3)))
        << spec.name;
    if (spec.init == arch::Init::kNormal) {
      double sum_of_squares = 0;
      for (const float value : whole) sum_of_squares += static_cast<double>(value) * value;
      const double count = static_cast<double>(whole.size());
      // Five standard deviations of an estimated standard deviation.
      EXPECT_NEAR(std::sqrt(sum_of_squares / count), spec.init_std, 5 * spec.init_std / std::sqrt(2 * count))
          << spec.name;
    } else {
      const float constant = spec.init == arch::Init::kOnes ? 1.0f : 0.0f;
      EXPECT_EQ(std::count(whole.begin(), whole.end(), constant), static_cast<int64_t>(whole.size())) << spec.name;
    }
  }
}

}  // namespace
}  // namespace lockstep::model
