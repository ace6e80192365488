#include "lockstep/arch/hf_names.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "lockstep/arch/hf_config_families.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// A module of a layer: its name in the layer of theirs and of ours. Which of its weight and bias exist, the parameter table says.
struct Row {
  LayerKind layer;
  std::string_view theirs;
  std::string_view ours;
  bool transposed = false;  // its weight
};
constexpr bool kTransposed = true;
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

// All others.
constexpr std::array kLlama = std::to_array<Row>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.q_proj", "attention.q"},
    {kBlock, "self_attn.k_proj", "attention.k"},
    {kBlock, "self_attn.v_proj", "attention.v"},
    {kBlock, "self_attn.o_proj", "attention.out"},
    {kBlock, "self_attn.q_norm", "attention.q_norm"},
    {kBlock, "self_attn.k_norm", "attention.k_norm"},
    {kBlock, "mlp.gate_proj", "mlp.gate"},
    {kBlock, "mlp.up_proj", "mlp.up"},
    {kBlock, "mlp.down_proj", "mlp.down"},
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "post_attention_layernorm", "mlp_norm"},
    {kHead, "norm", "norm"},
    {kHead, "lm_head", ""},
});

// Buffers; those of a block without its name.
constexpr std::array<std::string_view, 2> kGpt2Ignored = {".attn.bias", ".attn.masked_bias"};
constexpr std::array<std::string_view, 2> kLlamaIgnored = {".self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};

struct Names {
  std::string_view prefix;  // of all but the head
  std::string_view blocks;  // behind it: "h." of "h.3.ln_1.weight"
  std::span<const Row> rows;
  std::span<const std::string_view> ignored;
};
// In the order of HfNames.
constexpr Names kNames[] = {{"transformer.", "h.", kGpt2, kGpt2Ignored}, {"model.", "layers.", kLlama, kLlamaIgnored}};

const Names& names_of(Family family) { return kNames[static_cast<size_t>(hf_family(family).names)]; }

// Behind what the tensor has already.
void add_part(HfPart part, HfTensor& tensor) {
  int64_t& outputs = tensor.transposed ? tensor.shape.back() : tensor.shape.front();
  if (tensor.parts.empty()) outputs = 0;
  part.row = outputs;
  outputs += part.shape.front();
  tensor.parts.push_back(std::move(part));
}

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model) {
  const Names& names = names_of(model.family);
  std::map<std::string, std::vector<int64_t>> left;  // shapes of our parameters that have no tensor yet
  for (ParamSpec& spec : param_table(model)) left[spec.name] = std::move(spec.shape);
  std::vector<HfTensor> tensors;
  const auto add = [&](const LayerSpec& layer, const Row& row, std::string_view kind, std::ptrdiff_t first_of_layer) {
    const auto ours = left.extract(cat(layer.name, row.ours.empty() ? "" : ".", row.ours, kind));
    if (ours.empty()) return;
    const std::vector<int64_t>& shape = ours.mapped();
    const std::string block = row.layer == kBlock ? cat(names.blocks, layer.index - 1, ".") : "";
    const std::string name = canonical_hf_name(model.family, cat(block, row.theirs, kind));
    auto tensor = std::ranges::find(tensors.begin() + first_of_layer, tensors.end(), name, &HfTensor::name);
    if (tensor == tensors.end()) {
      const bool transposed = row.transposed && shape.size() == 2;
      tensor = tensors.insert(tensor, HfTensor{.name = name, .shape = shape, .transposed = transposed, .parts = {}});
      if (transposed) std::ranges::reverse(tensor->shape);
    }
    add_part({.name = ours.key(), .shape = shape}, *tensor);
  };
  for (const LayerSpec& layer : layer_table(model)) {
    const std::ptrdiff_t first = std::ssize(tensors);
    for (const Row& row : names.rows)
      for (const char* kind : {".weight", ".bias"})
        if (row.layer == layer.kind) add(layer, row, kind, first);
  }
  LOCKSTEP_CHECK(left.empty(), "family ", family_name(model.family), " has no row for ", left.begin()->first);
  return tensors;
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

}  // namespace lockstep::arch
