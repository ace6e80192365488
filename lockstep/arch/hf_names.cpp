#include "lockstep/arch/hf_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// Names of theirs begin behind the family's prefix, except the head's. {i} is the number of the block.
struct Row {
  std::string_view theirs;
  std::string_view ours;
  bool transposed = false;
};
constexpr bool kTransposed = true;
constexpr std::string_view kIndex = "{i}";

// Order: as transformers lists the tensors of its model, which decides how an export is cut into files.
constexpr std::array kGpt2 = std::to_array<Row>({
    {"wte.weight", "embed.tokens.weight"},
    {"wpe.weight", "embed.positions.weight"},
    {"h.{i}.ln_1.weight", "blocks.{i}.attention_norm.weight"},
    {"h.{i}.ln_1.bias", "blocks.{i}.attention_norm.bias"},
    {"h.{i}.attn.c_attn.weight", "blocks.{i}.attention.q.weight", kTransposed},
    {"h.{i}.attn.c_attn.weight", "blocks.{i}.attention.k.weight", kTransposed},
    {"h.{i}.attn.c_attn.weight", "blocks.{i}.attention.v.weight", kTransposed},
    {"h.{i}.attn.c_attn.bias", "blocks.{i}.attention.q.bias"},
    {"h.{i}.attn.c_attn.bias", "blocks.{i}.attention.k.bias"},
    {"h.{i}.attn.c_attn.bias", "blocks.{i}.attention.v.bias"},
    {"h.{i}.attn.c_proj.weight", "blocks.{i}.attention.out.weight", kTransposed},
    {"h.{i}.attn.c_proj.bias", "blocks.{i}.attention.out.bias"},
    {"h.{i}.ln_2.weight", "blocks.{i}.mlp_norm.weight"},
    {"h.{i}.ln_2.bias", "blocks.{i}.mlp_norm.bias"},
    {"h.{i}.mlp.c_fc.weight", "blocks.{i}.mlp.up.weight", kTransposed},
    {"h.{i}.mlp.c_fc.bias", "blocks.{i}.mlp.up.bias"},
    {"h.{i}.mlp.c_proj.weight", "blocks.{i}.mlp.down.weight", kTransposed},
    {"h.{i}.mlp.c_proj.bias", "blocks.{i}.mlp.down.bias"},
    {"ln_f.weight", "head.norm.weight"},
    {"ln_f.bias", "head.norm.bias"},
    {kHfHeadName, "head.weight"},
});

// llama, mistral, qwen2 and qwen3: which of the rows exist, biases and norms of q and k, the parameter table says.
constexpr std::array kLlama = std::to_array<Row>({
    {"embed_tokens.weight", "embed.tokens.weight"},
    {"layers.{i}.self_attn.q_proj.weight", "blocks.{i}.attention.q.weight"},
    {"layers.{i}.self_attn.q_proj.bias", "blocks.{i}.attention.q.bias"},
    {"layers.{i}.self_attn.k_proj.weight", "blocks.{i}.attention.k.weight"},
    {"layers.{i}.self_attn.k_proj.bias", "blocks.{i}.attention.k.bias"},
    {"layers.{i}.self_attn.v_proj.weight", "blocks.{i}.attention.v.weight"},
    {"layers.{i}.self_attn.v_proj.bias", "blocks.{i}.attention.v.bias"},
    {"layers.{i}.self_attn.o_proj.weight", "blocks.{i}.attention.out.weight"},
    {"layers.{i}.self_attn.o_proj.bias", "blocks.{i}.attention.out.bias"},
    {"layers.{i}.self_attn.q_norm.weight", "blocks.{i}.attention.q_norm.weight"},
    {"layers.{i}.self_attn.k_norm.weight", "blocks.{i}.attention.k_norm.weight"},
    {"layers.{i}.mlp.gate_proj.weight", "blocks.{i}.mlp.gate.weight"},
    {"layers.{i}.mlp.gate_proj.bias", "blocks.{i}.mlp.gate.bias"},
    {"layers.{i}.mlp.up_proj.weight", "blocks.{i}.mlp.up.weight"},
    {"layers.{i}.mlp.up_proj.bias", "blocks.{i}.mlp.up.bias"},
    {"layers.{i}.mlp.down_proj.weight", "blocks.{i}.mlp.down.weight"},
    {"layers.{i}.mlp.down_proj.bias", "blocks.{i}.mlp.down.bias"},
    {"layers.{i}.input_layernorm.weight", "blocks.{i}.attention_norm.weight"},
    {"layers.{i}.post_attention_layernorm.weight", "blocks.{i}.mlp_norm.weight"},
    {"norm.weight", "head.norm.weight"},
    {kHfHeadName, "head.weight"},
});

constexpr std::array<std::string_view, 2> kGpt2Ignored = {"h.{i}.attn.bias", "h.{i}.attn.masked_bias"};
constexpr std::array<std::string_view, 2> kLlamaIgnored = {"layers.{i}.self_attn.rotary_emb.inv_freq",
                                                           "rotary_emb.inv_freq"};

struct FamilyRows {
  std::string_view family;
  std::string_view prefix;
  std::span<const Row> rows;
  std::span<const std::string_view> ignored;
};
constexpr std::array kFamilies = std::to_array<FamilyRows>({
    {"gpt2", "transformer.", kGpt2, kGpt2Ignored},
    {"llama", "model.", kLlama, kLlamaIgnored},
    {"mistral", "model.", kLlama, kLlamaIgnored},
    {"qwen2", "model.", kLlama, kLlamaIgnored},
    {"qwen3", "model.", kLlama, kLlamaIgnored},
});

const FamilyRows& rows_of(Family family) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                  [&](const FamilyRows& rows) { return rows.family == family_name(family); });
  LOCKSTEP_CHECK(found != kFamilies.end(), "no Hugging Face names for family ", family_name(family));
  return *found;
}

bool is_of_block(std::string_view pattern) {
  return pattern.find(kIndex) != std::string_view::npos;
}

std::string with_index(std::string_view pattern, int64_t block) {
  const size_t at = pattern.find(kIndex);
  if (at == std::string_view::npos) return std::string(pattern);
  return cat(pattern.substr(0, at), block, pattern.substr(at + kIndex.size()));
}

// Whether `name` is the pattern with some number for {i}.
bool matches(std::string_view pattern, std::string_view name) {
  const size_t at = pattern.find(kIndex);
  if (at == std::string_view::npos) return pattern == name;
  const std::string_view before = pattern.substr(0, at), behind = pattern.substr(at + kIndex.size());
  if (!name.starts_with(before) || !name.ends_with(behind) || name.size() <= before.size() + behind.size())
    return false;
  const std::string_view digits = name.substr(before.size(), name.size() - before.size() - behind.size());
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Puts the parameters of one model into their tensors, row by row of the family's table.
class Listing {
 public:
  explicit Listing(const ModelConfig& model) : model_(model), family_(rows_of(model.family)) {
    for (ParamSpec& spec : param_table(model)) shapes_[spec.name] = std::move(spec.shape);
  }

  std::vector<HfTensor> make() {
    const auto& rows = family_.rows;
    for (size_t first = 0; first < rows.size();) {
      size_t last = first + 1;  // rows of blocks stand together: all of them for one block, then for the next
      while (is_of_block(rows[first].theirs) && last < rows.size() && is_of_block(rows[last].theirs)) ++last;
      const int64_t repeats = is_of_block(rows[first].theirs) ? model_.layers : 1;
      for (int64_t block = 0; block < repeats; ++block) {
        for (size_t i = first; i < last; ++i) add(rows[i], block);
      }
      first = last;
    }
    for (const auto& [name, shape] : shapes_)
      LOCKSTEP_CHECK(listed_.contains(name), "family ", family_.family, " has no row for ", name);
    return std::move(tensors_);
  }

 private:
  void add(const Row& row, int64_t block) {
    const auto found = shapes_.find(with_index(row.ours, block));
    if (found == shapes_.end()) return;
    const auto& [name, shape] = *found;
    listed_.insert(name);
    std::string theirs = with_index(row.theirs, block);
    if (row.theirs != kHfHeadName) theirs = cat(family_.prefix, theirs);
    const bool joins = !tensors_.empty() && tensors_.back().name == theirs;
    if (!joins) tensors_.push_back({.name = theirs, .shape = shape, .transposed = row.transposed, .parts = {}});
    HfTensor& tensor = tensors_.back();
    if (!joins && row.transposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
    int64_t& outputs = row.transposed ? tensor.shape.back() : tensor.shape.front();
    if (!joins) outputs = 0;
    tensor.parts.push_back({.name = name, .shape = shape, .row = outputs});
    outputs += shape.front();
  }

  const ModelConfig& model_;
  const FamilyRows& family_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // by our name
  std::set<std::string> listed_;
  std::vector<HfTensor> tensors_;
};

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model) {
  return Listing(model).make();
}

std::string canonical_hf_name(Family family, std::string_view name) {
  const std::string_view prefix = rows_of(family).prefix;
  if (name == kHfHeadName || name.starts_with(prefix)) return std::string(name);
  return cat(prefix, name);
}

bool is_ignored_hf_name(Family family, std::string_view canonical_name) {
  const FamilyRows& rows = rows_of(family);
  if (!canonical_name.starts_with(rows.prefix)) return false;
  const std::string_view name = canonical_name.substr(rows.prefix.size());
  return std::any_of(rows.ignored.begin(), rows.ignored.end(),
                     [&](std::string_view pattern) { return matches(pattern, name); });
}

}  // namespace lockstep::arch
