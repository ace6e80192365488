// Which parameters a layer has, and which branches a block.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {

std::string ParameterRows::named(std::string_view part, std::string_view kind) const {
  std::string name = layer.name;  // made for every candidate of a search: no stream
  if (!part.empty()) name.append(".").append(part);
  return name.append(".").append(kind);
}

ParamSpec& ParameterRows::add(std::string_view part, std::string_view kind, std::vector<int64_t> shape, TensorCut cut) {
  ParamSpec& spec = rows.emplace_back();
  spec.name = named(part, kind);
  spec.shape = std::move(shape);
  spec.weight_decay = spec.shape.size() >= 2;
  spec.layer = spec.unit = layer.index;
  spec.cut = cut;
  return spec;
}

ParamSpec& ParameterRows::weight(std::string_view part, int64_t outputs, int64_t inputs, TensorCut cut, double init_std) {
  ParamSpec& spec = add(part, "weight", {outputs, inputs}, cut);
  spec.init_std = init_std;
  if (layer.kind == LayerKind::kEmbedding) spec.of = config::ParameterClass::kEmbedding;
  if (layer.kind == LayerKind::kHead) spec.of = config::ParameterClass::kHead;
  return spec;
}

ParamSpec& ParameterRows::bias(std::string_view part, int64_t size, TensorCut cut) {
  ParamSpec& spec = add(part, "bias", {size}, cut);
  spec.init = Init::kZeros;
  spec.of = config::ParameterClass::kBias;
  return spec;
}

ParamSpec& ParameterRows::scale(std::string_view part, int64_t size) {
  ParamSpec& spec = add(part, "weight", {size}, TensorCut::kNone);
  spec.init = Init::kOnes;
  spec.of = config::ParameterClass::kNorm;
  return spec;
}

void ParameterRows::norm(const std::string& part) {
  ParamSpec& weight = scale(part, model.hidden);
  if (model.traits().norm_plus_one) weight.init = Init::kZeros;
  if (model.traits().layer_norm) bias(part, model.hidden);
}

double ParameterRows::output_std() const { return kInitStd / std::sqrt(2.0 * static_cast<double>(model.layers)); }

void ParameterRows::branch(const Branch& branch) {
  const BranchKind& kind = branch_kind(branch.kind);
  if (branch.norm_before) norm(branch.norm());
  if (kind.rows)
    kind.rows(*this, branch);
  else
    linear_rows(branch, kind);
  if (branch.norm_behind) norm(branch.post_norm());
}

void ParameterRows::linear_rows(const Branch& branch, const BranchKind& kind) {
  const BranchLinears linears = kind.linears(model);
  const std::string first = branch.part(linears.first.name), last = branch.part(linears.last.name);
  const auto fuse = [&](const char* of) { return linears.pieces.size() > 1 ? named(first, of) : std::string(); };
  for (const auto& [name, outputs, cut] : linears.pieces)
    weight(branch.part(name), outputs, model.hidden, cut).fuse = fuse("weight");
  if (linears.first.has_bias)
    for (const auto& [name, outputs, cut] : linears.pieces) bias(branch.part(name), outputs, cut).fuse = fuse("bias");
  if (kind.parameters) kind.parameters(*this, branch);
  weight(last, model.hidden, linears.last.in, TensorCut::kColumns, output_std());
  if (linears.last.has_bias) bias(last, model.hidden);
}

const BlockSpec& usual_block() {
  static const BlockSpec usual = {{.kind = "attention", .name = "attention"}, {.kind = "mlp", .name = "mlp"}};
  return usual;
}

namespace {

const BlockSpec& listed_branches(const ModelConfig& model, int layer) {
  if (model.blocks.empty()) return usual_block();
  return model.blocks[static_cast<size_t>(layer - 1) % model.blocks.size()];
}

}  // namespace

BlockSpec block_branches(const ModelConfig& model, int layer) {
  if (!model.blocks.empty())
    if (const std::vector<std::string> problems = block_problems(model); !problems.empty())
      throw ConfigError({.code = "LS1124", .what = cat("the blocks of the model:\n  ", join(problems, "\n  "))});
  BlockSpec branches = listed_branches(model, layer);
  for (Branch& branch : branches)
    if (model.has_latent() && branch.kind == "attention") branch.kind = kLatentAttention;
  if (!model.has_experts() || model.experts.is_dense(layer - 1)) return branches;
  for (Branch& branch : branches)
    if (branch.kind == "mlp") branch.kind = branch.name = kExperts;
  return branches;
}

bool is_expert_block(const ModelConfig& model, int layer) {
  if (!model.has_experts() || layer < 1 || layer > model.layers) return false;
  const bool dense = model.experts.is_dense(layer - 1);
  return std::ranges::any_of(listed_branches(model, layer), [dense](const Branch& branch) {
    return branch.kind == kExperts || (branch.kind == "mlp" && !dense);
  });
}

int layer_pattern(const ModelConfig& model, const LayerSpec& layer) {
  if (layer.kind != LayerKind::kBlock) return layer.kind == LayerKind::kEmbedding ? -1 : -2;
  const int lists = std::max(1, static_cast<int>(model.blocks.size()));
  const auto first = std::ranges::find(model.blocks, listed_branches(model, layer.index));  // of equal lists
  const int list = model.blocks.empty() ? 0 : static_cast<int>(first - model.blocks.begin());
  return is_expert_block(model, layer.index) ? lists + list : list;
}

int64_t window_of_layer(const ModelConfig& model, int layer) {
  const BlockSpec& branches = listed_branches(model, layer);
  const auto mixer = std::ranges::find(branches, "attention", &Branch::kind);
  return mixer == branches.end() ? model.sliding_window : model.window_of(*mixer);
}

ModelConfig model_of_layer(const ModelConfig& model, int layer) {
  ModelConfig own = model;
  own.sliding_window = window_of_layer(model, layer);
  return own;
}

std::vector<int> first_blocks(const ModelConfig& model) {
  std::set<int> patterns;
  std::vector<int> blocks;
  for (int layer = 1; layer <= static_cast<int>(model.layers); ++layer)
    if (patterns.insert(layer_pattern(model, layer_spec(model, layer))).second) blocks.push_back(layer);
  return blocks;
}

std::vector<ParamSpec> layer_parameters(const ModelConfig& model, const LayerSpec& layer) {
  return layer_parameters(model, layer, {.begin = 0, .end = model.experts.count});
}

std::vector<ParamSpec> layer_parameters(const ModelConfig& model, const LayerSpec& layer, mesh::Range experts) {
  ParameterRows rows(model, layer, experts);
  switch (layer.kind) {
    case LayerKind::kEmbedding:
      rows.weight("tokens", model.vocab_size, model.hidden, TensorCut::kRows);
      if (model.tied) rows.rows.back().tied_layers = {static_cast<int>(model.layers) + 1};
      if (model.traits().learned_positions) rows.weight("positions", model.max_seq_len, model.hidden, TensorCut::kNone);
      break;
    case LayerKind::kBlock:
      for (const Branch& branch : block_branches(model, layer.index)) rows.branch(branch);
      break;
    case LayerKind::kHead:
      rows.norm("norm");
      if (!model.tied) rows.weight("", model.vocab_size, model.hidden, TensorCut::kRows);
      break;
  }
  return std::move(rows.rows);
}

}  // namespace lockstep::arch
