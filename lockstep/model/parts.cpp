#include "lockstep/model/parts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/tensor/embedding.h"
#include "lockstep/parallel/tensor/head.h"
#include "lockstep/parallel/tensor/linear.h"

namespace lockstep::model {

PartsBuilder::PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options)
    : model_(model), source_(source), options_(options) {}

std::unique_ptr<nn::Embedding> PartsBuilder::embedding() {
  nn::Parameter positions;
  if (model_.traits().learned_positions) positions = source_.parameter("embed.positions.weight");
  const nn::Parameter tokens = source_.parameter("embed.tokens.weight");
  if (!group()) return std::make_unique<nn::Embedding>(tokens, positions, dropout("embed"));
  const mesh::Range here = mesh::shard_range(model_.vocab_size, group()->size(), group()->rank());
  return std::make_unique<parallel::VocabParallelEmbedding>(tokens, positions, dropout("embed"), *group(), here.begin);
}

std::unique_ptr<Block> PartsBuilder::block(int index) {
  using Mixer = arch::Branch::Mixer;
  const arch::LayerSpec layer = arch::layer_spec(model_, index + 1);
  const std::vector<arch::Branch> branches = arch::block_branches(model_, layer.index);
  LOCKSTEP_CHECK(branches.size() == 2 && branches[0].mixer == Mixer::kAttention && branches[1].mixer == Mixer::kMlp,
                 layer.name, " has ", branches.size(), " branches; built are attention and then an MLP");
  const std::string prefix = layer.name + ".";
  const program::CallId calls = program::call_of_layer(program::Purpose::kLayer, layer);
  const arch::Branch &first = branches[0], &second = branches[1];
  return std::make_unique<Block>(Block::Parts{.attention_norm = norm(cat(prefix, first.norm)),
                                              .attention = attention(prefix, calls, first),
                                              .attention_dropout = dropout(cat(prefix, first.name)),
                                              .mlp_norm = norm(cat(prefix, second.norm)),
                                              .mlp = mlp(prefix, calls, second),
                                              .mlp_dropout = dropout(cat(prefix, second.name)),
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

PartsBuilder::Parameters PartsBuilder::parameters(const std::string& name, bool has_bias) {
  return {.weight = source_.parameter(name + ".weight"),
          .bias = has_bias ? source_.parameter(name + ".bias") : nn::Parameter()};
}

std::unique_ptr<nn::Linear> PartsBuilder::column_linear(const std::string& name, const program::CallId& calls, bool has_bias) {
  const auto [weight, bias] = parameters(name, has_bias);
  if (!group()) return std::make_unique<nn::Linear>(weight, bias);
  return std::make_unique<parallel::ColumnParallelLinear>(weight, bias, *group(), calls);
}

std::unique_ptr<nn::Linear> PartsBuilder::row_linear(const std::string& name, const program::CallId& calls, bool has_bias) {
  const auto [weight, bias] = parameters(name, has_bias);
  if (!group()) return std::make_unique<nn::Linear>(weight, bias);
  return std::make_unique<parallel::RowParallelLinear>(weight, bias, *group(), calls);
}

std::unique_ptr<nn::Norm> PartsBuilder::norm(const std::string& name) {
  const auto [weight, bias] = parameters(name, model_.traits().layer_norm);
  return std::make_unique<nn::Norm>(weight, bias, model_.norm_eps);
}

std::unique_ptr<nn::Attention> PartsBuilder::attention(const std::string& prefix, const program::CallId& calls,
                                                       const arch::Branch& branch) {
  const int64_t tp = tensor_size();
  const nn::Attention::Shape shape{.heads = model_.heads / tp,
                                   .kv_heads = std::max<int64_t>(1, model_.kv_heads / tp),
                                   .head_size = model_.head_size};
  const at::TensorOptions options = source_.parameter(cat(prefix, branch.first, ".weight")).value.options();
  return std::make_unique<nn::Attention>(shape, column_linear(cat(prefix, branch.first), calls.of_part(branch.first), model_.qkv_bias),
                                         rotary(options),
                                         row_linear(cat(prefix, branch.last), calls.of_part(branch.last), model_.out_bias),
                                         head_norm(cat(prefix, branch.name)));
}

std::unique_ptr<nn::HeadNorm> PartsBuilder::head_norm(const std::string& name) {
  if (!model_.qk_norm) return nullptr;
  return std::make_unique<nn::HeadNorm>(source_.parameter(name + ".q_norm.weight"),
                                        source_.parameter(name + ".k_norm.weight"), model_.norm_eps);
}

std::unique_ptr<nn::Mlp> PartsBuilder::mlp(const std::string& prefix, const program::CallId& calls, const arch::Branch& branch) {
  std::unique_ptr<nn::Linear> down = row_linear(cat(prefix, branch.last), calls.of_part(branch.last), model_.mlp_bias);
  std::unique_ptr<nn::Linear> up = column_linear(cat(prefix, branch.first), calls.of_part(branch.first), model_.mlp_bias);
  if (model_.traits().gated_mlp)
    return std::make_unique<nn::Mlp>(std::move(up), std::make_unique<nn::SwiGlu>(), std::move(down));
  return std::make_unique<nn::Mlp>(std::move(up), std::make_unique<nn::GeluTanh>(), std::move(down));
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
  if (!model_.traits().learned_positions && !rotary_)
    rotary_.emplace(model_.max_seq_len, model_.head_size, model_.rope_theta, options, model_.rope_scaling);
  return rotary_;
}

}  // namespace lockstep::model
