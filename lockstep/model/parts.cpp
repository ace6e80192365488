#include "lockstep/model/parts.h"

#include <utility>

#include "lockstep/arch/cost.h"
#include "lockstep/base/text.h"

namespace lockstep::model {

using arch::Family;

PartsBuilder::PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options)
    : model_(model), source_(source), options_(options) {}

std::unique_ptr<nn::Embedding> PartsBuilder::embedding() {
  nn::Parameter positions;
  if (model_.family == Family::kGpt2) positions = source_.parameter("embed.positions.weight");
  return std::make_unique<nn::Embedding>(source_.parameter("embed.tokens.weight"), positions, dropout("embed"));
}

std::unique_ptr<Block> PartsBuilder::block(int index) {
  const std::string name = cat("blocks.", index, ".");
  return std::make_unique<Block>(Block::Parts{.attention_norm = norm(name + "attention_norm"),
                                              .attention = attention(name + "attention"),
                                              .attention_dropout = dropout(name + "attention"),
                                              .mlp_norm = norm(name + "mlp_norm"),
                                              .mlp = mlp(name + "mlp"),
                                              .mlp_dropout = dropout(name + "mlp")});
}

std::unique_ptr<nn::Head> PartsBuilder::head() {
  const nn::Parameter weight = source_.parameter(model_.tied ? "embed.tokens.weight" : "head.weight");
  return std::make_unique<nn::Head>(norm("head.norm"), weight, arch::head_chunk_rows(model_.vocab_size));
}

std::unique_ptr<nn::Linear> PartsBuilder::linear(const std::string& name) {
  nn::Parameter bias;
  if (model_.family == Family::kGpt2) bias = source_.parameter(name + ".bias");
  return std::make_unique<nn::Linear>(source_.parameter(name + ".weight"), bias);
}

std::unique_ptr<nn::Norm> PartsBuilder::norm(const std::string& name) {
  const nn::Parameter weight = source_.parameter(name + ".weight");
  if (model_.family == Family::kLlama) return std::make_unique<nn::RmsNorm>(weight, model_.norm_eps);
  return std::make_unique<nn::LayerNorm>(weight, source_.parameter(name + ".bias"), model_.norm_eps);
}

std::unique_ptr<nn::Attention> PartsBuilder::attention(const std::string& name) {
  const nn::Attention::Shape shape{.heads = model_.heads, .kv_heads = model_.kv_heads, .head_size = model_.head_size};
  const at::TensorOptions options = source_.parameter(name + ".qkv.weight").value.options();
  return std::make_unique<nn::Attention>(shape, linear(name + ".qkv"), rotary(options), linear(name + ".out"));
}

std::unique_ptr<nn::Mlp> PartsBuilder::mlp(const std::string& name) {
  if (model_.family == Family::kLlama) {
    return std::make_unique<nn::Mlp>(linear(name + ".gate_up"), std::make_unique<nn::SwiGlu>(), linear(name + ".down"));
  }
  return std::make_unique<nn::Mlp>(linear(name + ".up"), std::make_unique<nn::GeluTanh>(), linear(name + ".down"));
}

nn::Dropout PartsBuilder::dropout(const std::string& site) const {
  return nn::Dropout({.probability = options_.training ? model_.dropout : 0, .seed = options_.seed, .site = site});
}

std::optional<nn::Rotary> PartsBuilder::rotary(const at::TensorOptions& options) {
  if (model_.family == Family::kLlama && !rotary_) {
    rotary_.emplace(model_.max_seq_len, model_.head_size, model_.rope_theta, options);
  }
  return rotary_;
}

}  // namespace lockstep::model
