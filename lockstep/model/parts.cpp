#include "lockstep/model/parts.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/cost.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/tensor/embedding.h"
#include "lockstep/parallel/tensor/head.h"
#include "lockstep/parallel/tensor/linear.h"

namespace lockstep::model {

using arch::Family;

PartsBuilder::PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options)
    : model_(model), source_(source), options_(options) {}

std::unique_ptr<nn::Embedding> PartsBuilder::embedding() {
  nn::Parameter positions;
  if (model_.family == Family::kGpt2) positions = source_.parameter("embed.positions.weight");
  const nn::Parameter tokens = source_.parameter("embed.tokens.weight");
  if (!group()) return std::make_unique<nn::Embedding>(tokens, positions, dropout("embed"));
  const mesh::Range here = mesh::shard_range(model_.vocab_size, group()->size(), group()->rank());
  return std::make_unique<parallel::VocabParallelEmbedding>(tokens, positions, dropout("embed"), *group(), here.begin);
}

std::unique_ptr<Block> PartsBuilder::block(int index) {
  const std::string name = cat("blocks.", index, ".");
  return std::make_unique<Block>(Block::Parts{.attention_norm = norm(name + "attention_norm"),
                                              .attention = attention(name + "attention"),
                                              .attention_dropout = dropout(name + "attention"),
                                              .mlp_norm = norm(name + "mlp_norm"),
                                              .mlp = mlp(name + "mlp"),
                                              .mlp_dropout = dropout(name + "mlp"),
                                              .overlap = group() && group()->overlap()});
}

std::unique_ptr<nn::Head> PartsBuilder::head() {
  const nn::Parameter weight = source_.parameter(model_.tied ? "embed.tokens.weight" : "head.weight");
  const int64_t chunk_rows = arch::head_chunk_rows(mesh::padded_part(model_.vocab_size, tensor_size()));
  if (!group()) return std::make_unique<nn::Head>(norm("head.norm"), weight, chunk_rows);
  return std::make_unique<parallel::VocabParallelHead>(norm("head.norm"), weight, chunk_rows, *group(),
                                                       model_.vocab_size);
}

parallel::TensorGroup* PartsBuilder::group() const {
  return options_.tensor && options_.tensor->size() > 1 ? options_.tensor : nullptr;
}

int PartsBuilder::tensor_size() const { return group() ? group()->size() : 1; }

nn::Parameter PartsBuilder::bias(const std::string& name) {
  return model_.family == Family::kGpt2 ? source_.parameter(name + ".bias") : nn::Parameter();
}

std::unique_ptr<nn::Linear> PartsBuilder::column_linear(const std::string& name) {
  const nn::Parameter weight = source_.parameter(name + ".weight");
  if (!group()) return std::make_unique<nn::Linear>(weight, bias(name));
  return std::make_unique<parallel::ColumnParallelLinear>(weight, bias(name), *group(), name);
}

std::unique_ptr<nn::Linear> PartsBuilder::row_linear(const std::string& name) {
  const nn::Parameter weight = source_.parameter(name + ".weight");
  if (!group()) return std::make_unique<nn::Linear>(weight, bias(name));
  return std::make_unique<parallel::RowParallelLinear>(weight, bias(name), *group(), name);
}

std::unique_ptr<nn::Norm> PartsBuilder::norm(const std::string& name) {
  const nn::Parameter weight = source_.parameter(name + ".weight");
  if (model_.family == Family::kLlama) return std::make_unique<nn::RmsNorm>(weight, model_.norm_eps);
  return std::make_unique<nn::LayerNorm>(weight, source_.parameter(name + ".bias"), model_.norm_eps);
}

std::unique_ptr<nn::Attention> PartsBuilder::attention(const std::string& name) {
  const int64_t tp = tensor_size();
  const nn::Attention::Shape shape{.heads = model_.heads / tp,
                                   .kv_heads = std::max<int64_t>(1, model_.kv_heads / tp),
                                   .head_size = model_.head_size};
  const at::TensorOptions options = source_.parameter(name + ".qkv.weight").value.options();
  return std::make_unique<nn::Attention>(shape, column_linear(name + ".qkv"), rotary(options), row_linear(name + ".out"));
}

std::unique_ptr<nn::Mlp> PartsBuilder::mlp(const std::string& name) {
  if (model_.family == Family::kLlama) {
    return std::make_unique<nn::Mlp>(column_linear(name + ".gate_up"), std::make_unique<nn::SwiGlu>(),
                                     row_linear(name + ".down"));
  }
  return std::make_unique<nn::Mlp>(column_linear(name + ".up"), std::make_unique<nn::GeluTanh>(),
                                   row_linear(name + ".down"));
}

nn::Dropout PartsBuilder::dropout(const std::string& site) const {
  const bool rows = group() && group()->sequence_parallel();
  return nn::Dropout({.probability = options_.training ? model_.dropout : 0,
                      .seed = options_.seed,
                      .site = site,
                      .row_parts = rows ? group()->size() : 1,
                      .row_part = rows ? group()->rank() : 0});
}

std::optional<nn::Rotary> PartsBuilder::rotary(const at::TensorOptions& options) {
  if (model_.family == Family::kLlama && !rotary_) {
    rotary_.emplace(model_.max_seq_len, model_.head_size, model_.rope_theta, options);
  }
  return rotary_;
}

}  // namespace lockstep::model
