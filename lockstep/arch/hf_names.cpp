#include "lockstep/arch/hf_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "lockstep/arch/hf_config_families.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// How a weight is stored.
enum class Stored {
  kAsOurs,
  kTransposed,
  kStacked,  // of all experts in one tensor, under the module's bare name
  kAlone,     // and a bias of ours has no place
  kBareBias,  // the bias alone, under the row's bare name, in fp32 whatever the dtype of the others
};
constexpr Stored kTransposed = Stored::kTransposed, kStacked = Stored::kStacked, kAlone = Stored::kAlone,
                 kBareBias = Stored::kBareBias;

// A module of a layer: its name in the layer of theirs and of ours; # is the number of an expert. Which of its weight and bias exist,
// the parameter table says.
struct Row {
  LayerKind layer;
  std::string_view theirs;
  std::string_view ours;
  Stored stored = Stored::kAsOurs;
};
constexpr LayerKind kEmbedding = LayerKind::kEmbedding, kBlock = LayerKind::kBlock, kHead = LayerKind::kHead;

// Order: as transformers lists the tensors of its model, which decides how an export is cut into files.
constexpr std::array kGpt2 = std::to_array<Row>({
    {kEmbedding, "wte", "tokens"},
    {kEmbedding, "wpe", "positions"},
    {kBlock, "ln_1", "attention_norm"},
    {kBlock, "attn.c_attn", "attention.q", kTransposed},
    {kBlock, "attn.c_attn", "attention.k", kTransposed},
    {kBlock, "attn.c_attn", "attention.v", kTransposed},
    {kBlock, "attn.c_proj", "attention.out", kTransposed},
    {kBlock, "ln_2", "mlp_norm"},
    {kBlock, "mlp.c_fc", "mlp.up", kTransposed},
    {kBlock, "mlp.c_proj", "mlp.down", kTransposed},
    {kHead, "ln_f", "norm"},
    {kHead, "lm_head", ""},
});

// Of a block, between the embedding and what an MLP or experts have in it.
constexpr std::array kAttention = std::to_array<Row>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.q_proj", "attention.q"},
    {kBlock, "self_attn.k_proj", "attention.k"},
    {kBlock, "self_attn.v_proj", "attention.v"},
    {kBlock, "self_attn.o_proj", "attention.out"},
    {kBlock, "self_attn.q_norm", "attention.q_norm"},
    {kBlock, "self_attn.k_norm", "attention.k_norm"},
});
constexpr std::array kGatedMlp = std::to_array<Row>({
    {kBlock, "mlp.gate_proj", "mlp.gate"},
    {kBlock, "mlp.up_proj", "mlp.up"},
    {kBlock, "mlp.down_proj", "mlp.down"},
});
constexpr std::array kMixtralExperts = std::to_array<Row>({
    {kBlock, "block_sparse_moe.gate", "experts.router", kAlone},
    {kBlock, "block_sparse_moe.experts.#.w1", "experts.#.gate"},
    {kBlock, "block_sparse_moe.experts.#.w2", "experts.#.down"},
    {kBlock, "block_sparse_moe.experts.#.w3", "experts.#.up"},
});
constexpr std::array kQwen3MoeExperts = std::to_array<Row>({
    {kBlock, "mlp.gate", "experts.router", kAlone},
    {kBlock, "mlp.experts.#.gate_proj", "experts.#.gate"},
    {kBlock, "mlp.experts.#.up_proj", "experts.#.up"},
    {kBlock, "mlp.experts.#.down_proj", "experts.#.down"},
});
constexpr std::array kLatentRows = std::to_array<Row>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.q_a_proj", "attention.q_a"},
    {kBlock, "self_attn.q_a_layernorm", "attention.q_a_norm"},
    {kBlock, "self_attn.q_b_proj", "attention.q_b"},
    {kBlock, "self_attn.kv_a_proj_with_mqa", "attention.kv_a"},
    {kBlock, "self_attn.kv_a_layernorm", "attention.kv_a_norm"},
    {kBlock, "self_attn.kv_b_proj", "attention.kv_b"},
    {kBlock, "self_attn.o_proj", "attention.out"},
});
// Beside the tensors of qwen3_moe.
constexpr std::array kDeepseekExperts = std::to_array<Row>({
    {kBlock, "mlp.gate.e_score_correction_bias", "experts.router", kBareBias},
    {kBlock, "mlp.shared_experts.gate_proj", "experts.shared.gate"},
    {kBlock, "mlp.shared_experts.up_proj", "experts.shared.up"},
    {kBlock, "mlp.shared_experts.down_proj", "experts.shared.down"},
});
// Of all, where transformers 5 was asked for the tensors as its classes have them (save_original_format=False).
constexpr std::array kStackedExperts = std::to_array<Row>({
    {kBlock, "mlp.gate", "experts.router", kAlone},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.gate", kStacked},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.up", kStacked},
    {kBlock, "mlp.experts.down_proj", "experts.#.down", kStacked},
});
constexpr std::array kNorms = std::to_array<Row>({
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "post_attention_layernorm", "mlp_norm"},
    {kBlock, "post_attention_layernorm", "experts_norm"},
    {kHead, "norm", "norm"},
    {kHead, "lm_head", ""},
});

// Buffers; those of a block without its name.
constexpr std::array<std::string_view, 2> kGpt2Ignored = {".attn.bias", ".attn.masked_bias"};
constexpr std::array<std::string_view, 2> kLlamaIgnored = {".self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};

struct Names {
  std::string_view prefix;  // of all but the head
  std::string_view blocks;  // behind it: "h." of "h.3.ln_1.weight"
  std::vector<std::span<const Row>> rows;
  std::span<const std::string_view> ignored;
  std::vector<std::span<const Row>> stacked_rows = {};  // instead, where experts are stacked
};

const Names& names_of(Family family) {
  // In the order of HfNames.
  static const std::array<Names, 5> kNames = {
      Names{"transformer.", "h.", {kGpt2}, kGpt2Ignored},
      Names{"model.", "layers.", {kAttention, kGatedMlp, kNorms}, kLlamaIgnored},
      Names{"model.", "layers.", {kAttention, kMixtralExperts, kNorms}, kLlamaIgnored, {kAttention, kStackedExperts, kNorms}},
      Names{"model.", "layers.", {kAttention, kGatedMlp, kQwen3MoeExperts, kNorms}, kLlamaIgnored,
            {kAttention, kGatedMlp, kStackedExperts, kNorms}},
      Names{"model.", "layers.", {kLatentRows, kGatedMlp, kDeepseekExperts, kQwen3MoeExperts, kNorms}, kLlamaIgnored,
            {kLatentRows, kGatedMlp, kDeepseekExperts, kStackedExperts, kNorms}}};
  return kNames[static_cast<size_t>(hf_family(family).names)];
}

// Behind what the tensor has already.
void add_part(HfPart part, HfTensor& tensor) {
  int64_t& outputs = tensor.transposed ? tensor.shape.back() : tensor.shape.front();
  if (tensor.parts.empty()) outputs = 0;
  part.row = outputs;
  outputs += part.shape.front();
  tensor.parts.push_back(std::move(part));
}

// Makes the tensors of one layer after the other.
class Tensors {
 public:
  Tensors(const ModelConfig& model, const Names& names) : model_(model), names_(names) {
    for (ParamSpec& spec : param_table(model)) left_[spec.name] = std::move(spec.shape);
  }

  void add_layer(const LayerSpec& layer, std::span<const std::span<const Row>> all) {
    first_of_layer_ = std::ssize(tensors_);
    for (const std::span<const Row> rows : all)
      for (size_t i = 0; i < rows.size();) {
        const size_t end = end_of_experts(rows, i);
        if (end > i) add_experts(layer, rows.subspan(i, end - i));
        else add_row(layer, rows[i], "");
        i = std::max(end, i + 1);
      }
    const int64_t count = model_.experts.count;
    for (auto tensor = tensors_.begin() + first_of_layer_; tensor != tensors_.end(); ++tensor)
      if (stacked_.contains(tensor->name)) tensor->shape = {count, tensor->shape[0] / count, tensor->shape[1]};
  }

  std::vector<HfTensor> finish() {
    if (!left_.empty())
      throw ConfigError({.code = "LS1123",
                         .what = cat("transformers' ", hf_family(model_.family).language_model, " has no tensor for ", left_.begin()->first),
                         .way_out = "leave out what adds it to the model, or take a family that has it"});
    return std::move(tensors_);
  }

 private:
  // The rows of experts that begin at `first` end there.
  static size_t end_of_experts(std::span<const Row> rows, size_t first) {
    while (first < rows.size() && rows[first].ours.find('#') != std::string_view::npos) ++first;
    return first;
  }

  static std::string with_expert(std::string_view name, std::string_view expert) {
    const size_t place = name.find('#');
    return place == std::string_view::npos ? std::string(name) : cat(name.substr(0, place), expert, name.substr(place + 1));
  }

  void add_experts(const LayerSpec& layer, std::span<const Row> rows) {
    for (int64_t expert = 0; expert < model_.experts.count; ++expert)
      for (const Row& row : rows) add_row(layer, row, std::to_string(expert));
  }

  void add_row(const LayerSpec& layer, const Row& row, const std::string& expert) {
    if (row.layer != layer.kind) return;
    if (row.stored != Stored::kBareBias) add(layer, row, ".weight", expert);
    if (row.stored != Stored::kAlone) add(layer, row, ".bias", expert);
  }

  void add(const LayerSpec& layer, const Row& row, std::string_view kind, const std::string& expert) {
    const auto ours = left_.extract(cat(layer.name, row.ours.empty() ? "" : ".", with_expert(row.ours, expert), kind));
    if (ours.empty()) return;
    const std::vector<int64_t>& shape = ours.mapped();
    const std::string block = row.layer == kBlock ? cat(names_.blocks, layer.index - 1, ".") : "";
    const bool stacked = row.stored == Stored::kStacked, bare = stacked || row.stored == Stored::kBareBias;
    const std::string name =
        canonical_hf_name(model_.family, cat(block, with_expert(row.theirs, expert), bare ? std::string_view() : kind));
    if (stacked) stacked_.insert(name);
    auto tensor = std::ranges::find(tensors_.begin() + first_of_layer_, tensors_.end(), name, &HfTensor::name);
    if (tensor == tensors_.end()) {
      const bool transposed = row.stored == Stored::kTransposed && shape.size() == 2;
      tensor = tensors_.insert(tensor, HfTensor{.name = name, .shape = shape, .transposed = transposed, .parts = {},
                                                .fp32 = row.stored == Stored::kBareBias});
      if (transposed) std::ranges::reverse(tensor->shape);
    }
    add_part({.name = ours.key(), .shape = shape}, *tensor);
  }

  const ModelConfig& model_;
  const Names& names_;
  std::map<std::string, std::vector<int64_t>> left_;  // shapes of our parameters that have no tensor yet
  std::vector<HfTensor> tensors_;
  std::ptrdiff_t first_of_layer_ = 0;
  std::set<std::string> stacked_;
};

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfForm form) {
  const Names& names = names_of(model.family);
  const auto& rows = form == HfForm::kStacked && !names.stacked_rows.empty() ? names.stacked_rows : names.rows;
  Tensors tensors(model, names);
  for (const LayerSpec& layer : layer_table(model)) tensors.add_layer(layer, rows);
  return tensors.finish();
}

bool is_stacked_hf_name(std::string_view name) {
  return std::ranges::any_of(kStackedExperts, [&](const Row& row) { return row.stored == kStacked && name.ends_with(cat(".", row.theirs)); });
}

std::string canonical_hf_name(Family family, std::string_view name) {
  const std::string_view prefix = names_of(family).prefix;
  if (name == kHfHeadName || name.starts_with(prefix)) return std::string(name);
  return cat(prefix, name);
}

bool is_ignored_hf_name(Family family, std::string_view canonical_name) {
  const Names& names = names_of(family);
  if (!canonical_name.starts_with(names.prefix)) return false;
  std::string_view name = canonical_name.substr(names.prefix.size());
  if (name.starts_with(names.blocks)) {
    name.remove_prefix(names.blocks.size());
    const size_t number = std::min(name.find_first_not_of("0123456789"), name.size());
    if (number == 0) return false;
    name.remove_prefix(number);
  }
  return std::ranges::find(names.ignored, name) != names.ignored.end();
}

bool is_further_hf_layer(const ModelConfig& model, int64_t further, std::string_view canonical_name) {
  const Names& names = names_of(model.family);
  const std::string blocks = cat(names.prefix, names.blocks);
  if (further == 0 || !canonical_name.starts_with(blocks)) return false;
  const std::string_view name = canonical_name.substr(blocks.size());
  int64_t block = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  return error == std::errc() && end != name.data() && block >= model.layers && block - model.layers < further;
}

}  // namespace lockstep::arch
