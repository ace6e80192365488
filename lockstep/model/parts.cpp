#include "lockstep/model/parts.h"

#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/expert/exchange.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/shared_rows.h"
#include "lockstep/parallel/tensor/vocabulary.h"

namespace lockstep::model {

PartsBuilder::PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options)
    : model_(model), source_(source), options_(options) {}

std::unique_ptr<nn::Embedding> PartsBuilder::embedding() {
  nn::Parameter positions;
  if (model_.traits().learned_positions) positions = source_.parameter("embed.positions.weight");
  const nn::Parameter tokens = source_.parameter("embed.tokens.weight");
  if (!group()) return std::make_unique<nn::Embedding>(tokens, positions, dropout("embed"), model_.embedding_scale);
  return std::make_unique<parallel::VocabParallelEmbedding>(tokens, positions, dropout("embed"), *group(), model_.vocab_size,
                                                            model_.embedding_scale);
}

std::unique_ptr<Block> PartsBuilder::block(int index) {
  const arch::LayerSpec layer = arch::layer_spec(model_, index + 1);
  const program::CallId calls = program::call_of_layer(program::Purpose::kLayer, layer);
  std::vector<Block::Part> parts;
  for (const arch::Branch& branch : arch::block_branches(model_, layer.index)) {
    const BranchPlace place{.spec = branch, .name = cat(layer.name, ".", branch.name), .calls = calls};
    parts.push_back({.norm = branch.norm_before ? norm(cat(layer.name, ".", branch.norm())) : nullptr,
                     .branch = branch_maker(branch.kind)(*this, place),
                     .norm_behind = branch.norm_behind ? norm(cat(layer.name, ".", branch.post_norm())) : nullptr,
                     .dropout = dropout(place.name),
                     .beside = branch.beside,
                     .shares_input = branch.shares_input()});
  }
  return std::make_unique<Block>(std::move(parts), group());
}

std::unique_ptr<nn::Head> PartsBuilder::head() {
  const nn::Parameter weight = source_.parameter(model_.tied ? "embed.tokens.weight" : "head.weight");
  const int64_t chunk_rows = arch::head_chunk_rows(model_.vocab_size, tensor_size());
  if (!group()) return std::make_unique<nn::Head>(norm("head.norm"), weight, chunk_rows, model_.multipliers.logits);
  return std::make_unique<parallel::VocabParallelHead>(norm("head.norm"), weight, chunk_rows, *group(),
                                                       model_.vocab_size, model_.multipliers.logits);
}

parallel::TensorGroup* PartsBuilder::group() const {
  return options_.tensor && options_.tensor->size() > 1 ? options_.tensor : nullptr;
}

parallel::ContextGroup* PartsBuilder::context() const {
  return options_.context && options_.context->size() > 1 ? options_.context : nullptr;
}

int PartsBuilder::tensor_size() const { return group() ? group()->size() : 1; }
int PartsBuilder::tensor_rank() const { return group() ? group()->rank() : 0; }

nn::Parameter PartsBuilder::parameter(const BranchPlace& place, std::string_view part) {
  return source_.parameter(cat(place.name, ".", part));
}

template <typename Sharded>
std::unique_ptr<nn::Linear> PartsBuilder::linear(const BranchPlace& place, const arch::LayerBuilder::Linear& linear) {
  const nn::Parameter weight = parameter(place, cat(linear.name, ".weight"));
  const nn::Parameter bias = linear.has_bias ? parameter(place, cat(linear.name, ".bias")) : nn::Parameter();
  if (!group()) return std::make_unique<nn::Linear>(weight, bias);
  return std::make_unique<Sharded>(weight, bias, *group(), place.calls.of_part(place.spec.part(linear.name)));
}

std::unique_ptr<nn::Linear> PartsBuilder::first_linear(const BranchPlace& place) {
  return linear<parallel::ColumnParallelLinear>(place, arch::branch_kind(place.spec.kind).linears(model_).first);
}

std::unique_ptr<nn::Linear> PartsBuilder::last_linear(const BranchPlace& place) {
  return linear<parallel::RowParallelLinear>(place, arch::branch_kind(place.spec.kind).linears(model_).last);
}

std::unique_ptr<nn::Linear> PartsBuilder::column_linear(const BranchPlace& place, std::string_view name, bool has_bias) {
  return linear<parallel::ColumnParallelLinear>(place, {.name = name, .has_bias = has_bias});
}

std::unique_ptr<nn::Linear> PartsBuilder::row_linear(const BranchPlace& place, std::string_view name, bool has_bias) {
  return linear<parallel::RowParallelLinear>(place, {.name = name, .has_bias = has_bias});
}

std::unique_ptr<nn::SharedRows> PartsBuilder::shared_rows(const BranchPlace& place, std::string_view name) {
  if (!group()) return std::make_unique<nn::SharedRows>();
  return std::make_unique<parallel::TensorSharedRows>(*group(), place.calls.of_part(place.spec.part(name)));
}

std::shared_ptr<nn::ExpertExchange> PartsBuilder::expert_exchange(const BranchPlace& place) {
  if (!options_.experts && !group() && !context()) return std::make_shared<nn::ExpertExchange>();
  return std::make_shared<parallel::ShardedExchange>(options_.experts, group(), context(), place.calls, place.spec.name);
}

std::unique_ptr<nn::ContextAttention> PartsBuilder::context_attention(const BranchPlace& place) {
  return context() ? parallel::make_context_attention(*context(), place.calls, place.spec.name) : nullptr;
}

std::unique_ptr<nn::Norm> PartsBuilder::norm(const std::string& name) {
  const nn::Parameter weight = source_.parameter(name + ".weight");
  const nn::Parameter bias = model_.traits().layer_norm ? source_.parameter(name + ".bias") : nn::Parameter();
  return std::make_unique<nn::Norm>(weight, bias, model_.norm_eps, model_.traits().norm_plus_one);
}

nn::Dropout PartsBuilder::dropout(const std::string& site) const {
  nn::DropoutOptions options{.probability = options_.training ? model_.dropout : 0, .seed = options_.seed, .site = site};
  if (parallel::TensorGroup* ranks = group(); ranks && ranks->sequence_parallel())
    options.rows_here = [ranks](int64_t rows) { return ranks->local_rows(rows); };
  return nn::Dropout(std::move(options));
}

std::optional<nn::Rotary> PartsBuilder::rotary(const BranchPlace& place) {
  const arch::Rotation rotation = place.spec.rotation;
  if (model_.traits().learned_positions || rotation == arch::Rotation::kNone) return std::nullopt;
  if (const auto found = rotary_.find(rotation); found != rotary_.end()) return found->second;
  const bool latent = place.spec.kind == arch::kLatentAttention, local = rotation == arch::Rotation::kLocal;
  LOCKSTEP_CHECK(!local || model_.rope_local_theta > 0, place.name, " turns by rope_local_theta = ", model_.rope_local_theta);
  const std::string first(latent ? "q_b" : arch::branch_kind(place.spec.kind).linears(model_).first.name);
  const nn::Rotary made(model_.max_seq_len, latent ? model_.latent.rope : model_.rotated(), local ? model_.rope_local_theta : model_.rope_theta,
                        parameter(place, first + ".weight").value.options(), local ? arch::RopeScaling() : model_.rope_scaling);
  return rotary_.emplace(rotation, made).first->second;
}

}  // namespace lockstep::model
