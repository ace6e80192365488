#include "lockstep/arch/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "lockstep/arch/hf_reading.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostBytes = 16 << 20;  // of config.json; real ones have a few KiB
constexpr int64_t kNoPositions = 1 << 20;   // longest sequence of a family that has no limit of its own

Family model_type(HfReading& r) {
  const std::string type = r.keys.text("model_type", "");
  const std::optional<Family> family = family_of(type);
  if (family) return *family;
  if (!r.keys.has("model_type")) r.problem("model_type is missing");
  r.unsupported(cat("model_type = \"", type, "\": of ", join(family_names(), ", ")));
  r.refuse();
}

int64_t whole_heads(HfReading& r) {
  const ModelConfig& m = r.model();
  if (m.hidden % m.heads != 0)
    r.problem(cat(r.family->hidden, "(", m.hidden, ") % ", r.family->heads, "(", m.heads, ") = ", m.hidden % m.heads));
  return std::max<int64_t>(1, m.hidden / m.heads);
}

void read_heads(HfReading& r) {
  const HfFamily& family = *r.family;
  const HfKeys& keys = r.keys;
  ModelConfig& m = r.model();
  if (family.plain_heads) {
    m.kv_heads = m.heads;
    m.head_size = whole_heads(r);
    return;
  }
  // A null means one for each head, a missing key what the class takes.
  const bool named = keys.json().contains("num_key_value_heads");
  m.kv_heads = keys.size("num_key_value_heads", named || family.default_kv_heads == 0 ? m.heads : family.default_kv_heads);
  if (m.traits().latent) return;  // read_latent() says it
  const bool derived = !keys.has("head_dim") && family.default_head_size == 0;
  m.head_size = derived ? whole_heads(r) : keys.size("head_dim", family.default_head_size);
}

void read_sizes(HfReading& r) {
  const HfFamily& family = *r.family;
  const HfKeys& keys = r.keys;
  ModelConfig& m = r.model();
  m.hidden = keys.size(family.hidden);
  if (family.layers) {
    m.layers = keys.size(family.layers, std::nullopt, /*least=*/1, /*most=*/1 << 16);
  } else {
    r.kinds = listed_branches(r);
    m.layers = std::ssize(r.kinds);
  }
  m.vocab_size = keys.size("vocab_size");
  m.max_seq_len = family.positions ? keys.size(family.positions, family.default_positions) : kNoPositions;
  m.norm_eps = keys.positive(family.norm_eps, family.default_norm_eps);
  m.tied = keys.flag("tie_word_embeddings", family.default_tied);
  if (!family.heads) return;  // read_state_space() says the others
  m.heads = keys.size(family.heads);
  m.ffn = m.traits().learned_positions ? keys.size(family.ffn, 4 * m.hidden) : keys.size(family.ffn);
  read_heads(r);
}

// head_dim of the file is that of the rotary part.
void read_latent(HfReading& r) {
  const HfKeys& keys = r.keys;
  ModelConfig& m = r.model();
  if (!m.traits().latent) return;
  if (!keys.has("q_lora_rank")) r.unsupported("no q_lora_rank: queries are made of a latent");
  m.latent = {.q_rank = keys.size("q_lora_rank", 1),
              .kv_rank = keys.size("kv_lora_rank"),
              .nope = keys.size("qk_nope_head_dim"),
              .rope = keys.size("qk_rope_head_dim"),
              .value = keys.size("v_head_dim"),
              .interleaved = keys.flag("rope_interleave", true)};
  m.head_size = m.latent.head();
  if (keys.flag("attention_bias", false)) r.unsupported("attention_bias = true: latent attention has no bias");
  if (m.kv_heads != m.heads) r.problem(cat("num_key_value_heads(", m.kv_heads, ") != ", r.family->heads, "(", m.heads, ")"));
}

void read_activation(HfReading& r) {
  if (!r.family->activation) return;
  const std::string name = r.keys.text(r.family->activation, std::string(r.family->default_activation));
  const bool gated = r.model().gated_mlp(), silu = name == "silu" || name == "swish";
  const bool tanh = name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast";
  const bool only_silu = r.model().has_experts() || r.model().has_state_space();  // experts and the convolution have no other one
  Activation& activation = r.model().activation;
  if (gated && silu) activation = Activation::kSwiGlu;
  else if (gated && tanh && !only_silu) activation = Activation::kGeGlu;
  else if (!gated && tanh) activation = Activation::kGeluTanh;
  else if (!gated && name == "gelu") activation = Activation::kGelu;
  else if (!gated && name == "relu2") activation = Activation::kRelu2;
  else r.unsupported(cat(r.family->activation, " = \"", name, "\": of ",
                         !gated      ? "gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu2"
                         : only_silu ? "silu"
                                     : "silu, gelu_new, gelu_pytorch_tanh, gelu_fast"));
}

// muP: Yang et al. 2022, as Falcon-H1 has it.
void read_multipliers(HfReading& r) {
  const HfKeys& keys = r.keys;
  Multipliers& by = r.model().multipliers;
  r.model().embedding_scale = keys.positive("embedding_multiplier", 1);
  by.logits = keys.positive("lm_head_multiplier", 1);
  by.attention_in = keys.positive("attention_in_multiplier", 1);
  by.key = keys.positive("key_multiplier", 1);
  by.attention_out = keys.positive("attention_out_multiplier", 1);
  by.state_in = keys.positive("ssm_in_multiplier", 1);
  by.state_out = keys.positive("ssm_out_multiplier", 1);
  if (const std::vector<double> all = keys.positives("ssm_multipliers", 5); !all.empty())
    by.z = all[0], by.x = all[1], by.b = all[2], by.c = all[3], by.dt = all[4];
  if (const std::vector<double> all = keys.positives("mlp_multipliers", 2); !all.empty()) by.gate = all[0], by.down = all[1];
}

// What a family has beside sizes and layers.
void read_own(HfReading& r) {
  const HfKeys& keys = r.keys;
  ModelConfig& m = r.model();
  if (r.family->attention_bias_key) m.qkv_bias = m.out_bias = keys.flag("attention_bias", r.family->default_attention_bias);
  if (r.family->mlp_bias_key) m.mlp_bias = keys.flag("mlp_bias", false);
  m.attention_sinks = m.family == Family::kGptOss;
  if (r.family->multipliers) read_multipliers(r);
  if (m.family == Family::kNemotronH) {
    if (keys.flag("attention_bias", false)) r.unsupported("attention_bias = true: attention of this family has no bias");
    if (m.tied) r.unsupported("tie_word_embeddings = true: transformers ties nothing in this family");
  }
  if (m.family == Family::kGemma3) {
    m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
    const int64_t scalar = keys.size("query_pre_attn_scalar", 256);
    if (scalar != m.head_size) m.attention_scale = 1 / std::sqrt(static_cast<double>(scalar));
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
      if (const Json* cap = keys.find(key)) r.unsupported(cat(key, " = ", cap->dump(), ": no soft caps"));
    if (keys.flag("use_bidirectional_attention", false)) r.unsupported("use_bidirectional_attention = true");
  }
  if (m.traits().learned_positions) {
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      if (keys.flag(key, false)) r.unsupported(cat(key, " = true"));
    if (!keys.flag("scale_attn_weights", true)) r.unsupported("scale_attn_weights = false");
  }
}

void read_other_keys(HfReading& r) {
  const HfKeys& keys = r.keys;
  if (keys.has("quantization_config"))
    r.unsupported("quantization_config: quantised weights; take the model in bf16, fp16 or fp32");
  if (const Json* names = keys.find("architectures")) {
    const bool known = names->is_array() && std::all_of(names->begin(), names->end(), [&](const Json& name) {
      return name == r.family->language_model || name == r.family->bare_model;
    });
    if (!known)
      r.unsupported(cat("architectures = ", names->dump(), ": of ", r.family->language_model, ", ", r.family->bare_model));
  }
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout"})
    if (const double dropout = keys.above_zero(key); dropout > 0)
      r.note(cat(key, " = ", number_text(dropout), " is not taken: dropout is what model.dropout says, else 0"));
  if (const int64_t pieces = keys.size("pretraining_tp", 1); pieces > 1)
    r.note(cat("pretraining_tp = ", pieces, " is not needed: with it one device computes products in ", pieces,
               " pieces, as if the layers were split; parallel.tp splits them for real"));
  r.read.dtype = keys.text("dtype", keys.text("torch_dtype", ""));
}

void read_tokens(HfReading& r, const Json& generation) {
  const auto take = [&](const HfKeys& keys) {
    if (std::vector<int64_t> ids = keys.ids("eos_token_id"); !ids.empty()) r.read.eos_token_ids = std::move(ids);
    keys.ids("bos_token_id");  // of no use here, but no other text may stand there
  };
  take(r.keys);
  if (generation.is_object()) take(HfKeys(generation, "generation_config.json: ", r.problems));
}

// Python writes a bare Infinity, which is no JSON: as transformers 5 says it.
std::string without_bare_infinity(const std::string& text) {
  constexpr std::string_view kBare = "Infinity";
  std::string result;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\' && i + 1 < text.size()) {
      result.append(text, i++, 2);
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    if (quoted || !std::string_view(text).substr(i).starts_with(kBare)) {
      result += text[i];
      continue;
    }
    result.append("{\"__float__\": \"Infinity\"}");
    i += kBare.size() - 1;
  }
  return result;
}

}  // namespace

void HfReading::refuse() const {
  if (problems.empty())
    throw DataError({.code = "LS1118", .what = cat("this model needs what is not built:\n  ", join(not_built, "\n  ")), .where = origin});
  throw DataError({.code = "LS1117",
                   .what = cat(problems.size(), problems.size() == 1 ? " problem:\n  " : " problems:\n  ", join(problems, "\n  ")),
                   .where = origin});
}

HfConfig parse_hf_config(const Json& config, const Json& generation, std::string_view origin) {
  if (!config.is_object())
    throw DataError({.code = "LS1117", .what = "not a JSON object", .where = std::string(origin)});
  HfReading r(config, origin);
  const Family family = model_type(r);
  r.family = &hf_family(family);
  r.read.model = ModelConfig{.family = family};
  read_sizes(r);
  read_own(r);
  read_latent(r);
  read_state_space(r);
  read_rope(r);
  read_experts(r);
  read_layers(r);
  read_activation(r);
  read_other_keys(r);
  read_tokens(r, generation);
  if (r.problems.empty() && r.not_built.empty()) r.problems = size_problems(r.model());
  if (!r.problems.empty() || !r.not_built.empty()) r.refuse();
  return std::move(r.read);
}

Json read_hf_json(const fs::path& path) {
  if (fs::file_size(path) > kMostBytes)
    throw DataError({.code = "LS1117",
                     .what = cat("the file has ", fs::file_size(path), " bytes, more than ", kMostBytes),
                     .where = path.string()});
  return parse_json(without_bare_infinity(read_file(path)), path.string());
}

HfConfig load_hf_config(const fs::path& dir, std::string_view name) {
  const fs::path path = dir / name, generation = dir / "generation_config.json";
  if (!fs::is_regular_file(path))
    throw DataError({.code = "LS1115",
                     .what = cat("no ", name, " in ", dir.string()),
                     .way_out = "name a model directory of Hugging Face: config.json beside *.safetensors, as "
                                "save_pretrained writes it"});
  const Json beside = fs::is_regular_file(generation) ? read_hf_json(generation) : Json();
  return parse_hf_config(read_hf_json(path), beside, path.string());
}

}  // namespace lockstep::arch
