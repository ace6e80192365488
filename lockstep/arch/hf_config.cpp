#include "lockstep/arch/hf_config.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/arch/hf_config_families.h"
#include "lockstep/arch/hf_keys.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostBytes = 16 << 20;  // of config.json; real ones have a few KiB

class Reader {
 public:
  Reader(const Json& config, std::string_view origin) : origin_(origin), keys_(config, "", problems_) {}

  HfConfig run(const Json& generation) {
    const Family family = model_type();
    family_ = &hf_family(family);
    read_.model = ModelConfig{.family = family};
    sizes();
    if (family_->attention_bias_key) model().qkv_bias = model().out_bias = keys_.flag("attention_bias", false);
    if (family_->mlp_bias_key) model().mlp_bias = keys_.flag("mlp_bias", false);
    if (model().traits().latent) latent();
    if (!model().traits().learned_positions) rope();
    if (family_->experts.count) experts();
    window();
    activations();
    other_keys();
    tokens(generation);
    if (problems_.empty() && unsupported_.empty()) problems_ = size_problems(model());
    if (!problems_.empty() || !unsupported_.empty()) refuse();
    return std::move(read_);
  }

 private:
  ModelConfig& model() { return read_.model; }
  void unsupported(std::string text) { unsupported_.push_back(std::move(text)); }
  void note(std::string text) { read_.notes.push_back(std::move(text)); }

  [[noreturn]] void refuse() const {
    if (problems_.empty())
      throw DataError({.code = "LS1118", .what = cat("this model needs what is not built:\n  ", join(unsupported_, "\n  ")),
                       .where = origin_});
    throw DataError({.code = "LS1117",
                     .what = cat(problems_.size(), problems_.size() == 1 ? " problem:\n  " : " problems:\n  ",
                                 join(problems_, "\n  ")),
                     .where = origin_});
  }

  Family model_type() {
    const std::string type = keys_.text("model_type", "");
    const std::optional<Family> family = family_of(type);
    if (family) return *family;
    if (!keys_.has("model_type")) problems_.push_back("model_type is missing");
    unsupported(cat("model_type = \"", type, "\": of ", join(family_names(), ", ")));
    refuse();
  }

  void sizes() {
    ModelConfig& m = model();
    m.hidden = keys_.size(family_->hidden);
    m.layers = keys_.size(family_->layers, std::nullopt, /*least=*/1, /*most=*/1 << 16);
    m.heads = keys_.size(family_->heads);
    m.vocab_size = keys_.size("vocab_size");
    m.max_seq_len = keys_.size(family_->positions, family_->default_positions);
    m.norm_eps = keys_.positive(family_->norm_eps, family_->default_norm_eps);
    m.tied = keys_.flag("tie_word_embeddings", family_->default_tied);
    if (m.traits().learned_positions) {
      m.ffn = keys_.size(family_->ffn, 4 * m.hidden);
      m.kv_heads = m.heads;
      m.head_size = whole_heads();
      return;
    }
    m.ffn = keys_.size(family_->ffn);
    // A null means one for each head, a missing key what the class takes.
    const bool named = keys_.json().contains("num_key_value_heads");
    m.kv_heads = keys_.size("num_key_value_heads",
                            named || family_->default_kv_heads == 0 ? m.heads : family_->default_kv_heads);
    if (m.traits().latent) return;  // latent() says it
    const bool derived = !keys_.has("head_dim") && family_->default_head_size == 0;
    m.head_size = derived ? whole_heads() : keys_.size("head_dim", family_->default_head_size);
  }

  // head_dim of the file is that of the rotary part.
  void latent() {
    ModelConfig& m = model();
    if (!keys_.has("q_lora_rank")) unsupported("no q_lora_rank: queries are made of a latent");
    m.latent = {.q_rank = keys_.size("q_lora_rank", 1),
                .kv_rank = keys_.size("kv_lora_rank"),
                .nope = keys_.size("qk_nope_head_dim"),
                .rope = keys_.size("qk_rope_head_dim"),
                .value = keys_.size("v_head_dim"),
                .interleaved = keys_.flag("rope_interleave", true)};
    m.head_size = m.latent.head();
    if (keys_.flag("attention_bias", false)) unsupported("attention_bias = true: latent attention has no bias");
    if (m.kv_heads != m.heads)
      problems_.push_back(cat("num_key_value_heads(", m.kv_heads, ") != ", family_->heads, "(", m.heads, ")"));
  }

  int64_t whole_heads() {
    const ModelConfig& m = model();
    if (m.hidden % m.heads != 0)
      problems_.push_back(cat(family_->hidden, "(", m.hidden, ") % ", family_->heads, "(", m.heads,
                              ") = ", m.hidden % m.heads));
    return std::max<int64_t>(1, m.hidden / m.heads);
  }

  // As transformers does: rope_scaling stands before rope_parameters, and in either the theta inside before the one
  // outside.
  void rope() {
    ModelConfig& m = model();
    m.rope_theta = keys_.positive("rope_theta", family_->default_rope_theta);
    partial_rotary(keys_);
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const std::optional<HfKeys> rope = keys_.object(key);
      if (!rope || rope->json().empty()) continue;
      const bool by_layer =
          std::any_of(rope->json().begin(), rope->json().end(), [](const Json& value) { return value.is_object(); });
      if (by_layer) {
        unsupported(cat(key, " by kind of layer"));
        continue;
      }
      m.rope_theta = rope->positive("rope_theta", m.rope_theta);
      m.rope_scaling = scaling(*rope);
      partial_rotary(*rope);
    }
  }

  void partial_rotary(const HfKeys& keys) {
    const double factor = keys.positive("partial_rotary_factor", 1.0);
    if (factor != 1) unsupported(cat(keys.name("partial_rotary_factor"), " = ", factor));
  }

  RopeScaling scaling(const HfKeys& keys) {
    const std::string type = keys.text("rope_type", keys.text("type", "default"));
    if (type == "default") return {};
    if (type == "yarn") return yarn(keys);
    if (type != "linear" && type != "llama3") {
      unsupported(cat(keys.name("rope_type"), " = \"", type, "\": of default, linear, llama3, yarn"));
      return {};
    }
    RopeScaling scaling{.kind = RopeScaling::Kind::kLinear, .factor = keys.positive("factor")};
    if (type == "linear") return scaling;
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = keys.positive("low_freq_factor");
    scaling.high_freq_factor = keys.positive("high_freq_factor");
    const int64_t inside = keys.size("original_max_position_embeddings", model().max_seq_len);
    scaling.original_max_position_embeddings = keys_.size("original_max_position_embeddings", inside);
    if (problems_.empty() && scaling.high_freq_factor <= scaling.low_freq_factor)
      problems_.push_back(cat(keys.name("high_freq_factor"), " = ", scaling.high_freq_factor,
                              " is not above low_freq_factor = ", scaling.low_freq_factor));
    return scaling;
  }

  RopeScaling yarn(const HfKeys& keys) {
    const auto given = [&](const char* key) {  // 0 is as good as nothing
      const Json* value = keys.find(key);
      return value && !(value->is_number() && value->get<double>() == 0) ? keys.positive(key) : 0.0;
    };
    RopeScaling scaling{.kind = RopeScaling::Kind::kYarn};
    const int64_t inside = keys.size("original_max_position_embeddings", model().max_seq_len);
    scaling.original_max_position_embeddings = keys_.size("original_max_position_embeddings", inside);
    scaling.factor = keys.positive("factor", static_cast<double>(model().max_seq_len) / static_cast<double>(inside));
    scaling.beta_fast = keys.positive("beta_fast", scaling.beta_fast);
    scaling.beta_slow = keys.positive("beta_slow", scaling.beta_slow);
    scaling.mscale = given("mscale");
    scaling.mscale_all_dim = given("mscale_all_dim");
    scaling.attention_factor = given("attention_factor");
    if (!keys.flag("truncate", true)) unsupported(cat(keys.name("truncate"), " = false"));
    if (problems_.empty() && scaling.beta_fast <= scaling.beta_slow)
      problems_.push_back(cat(keys.name("beta_fast"), " = ", scaling.beta_fast, " is not above beta_slow = ", scaling.beta_slow));
    return scaling;
  }

  void window() {
    ModelConfig& m = model();
    if (!family_->default_window) return;
    const bool off = keys_.json().contains("sliding_window") && !keys_.has("sliding_window");
    const int64_t window = off ? 0 : keys_.size("sliding_window", family_->default_window);
    if (window == 0) return;
    if (family_->window == HfWindow::kFlagged && !keys_.flag("use_sliding_window", false)) return;
    const int64_t sliding = family_->window == HfWindow::kByLayer ? sliding_layers() : m.layers;
    if (sliding == 0) return;
    m.sliding_window = window;
    if (sliding == m.layers || m.max_seq_len <= window) return;
    note(cat("sliding_window = ", window, " of ", m.max_seq_len, " positions in ", sliding, " of ", m.layers, " layers: up to there a window ",
             "is plain causal attention, longer sequences need one window for all layers; model.max_seq_len is ", window));
    m.max_seq_len = window;
  }

  void experts() {
    const HfExperts& theirs = family_->experts;
    ExpertSizes& e = model().experts;
    const bool other = theirs.other_count && keys_.has(theirs.other_count);
    e.count = keys_.size(other ? theirs.other_count : theirs.count);
    if (other && keys_.has(theirs.count) && keys_.size(theirs.count) != e.count)
      problems_.push_back(cat(theirs.count, " and ", theirs.other_count, " differ"));
    e.per_token = keys_.size("num_experts_per_tok");
    e.ffn = theirs.ffn ? keys_.size(theirs.ffn) : model().ffn;
    const bool normed = !theirs.norm_key || keys_.flag("norm_topk_prob", false);
    e.router = normed ? config::Router::kSoftmaxAfterTopk : config::Router::kSoftmax;
    if (theirs.sigmoid) sigmoid_experts();
    if (theirs.dense_layers) dense_layers();
    if (const double coefficient = above_zero("router_aux_loss_coef"); coefficient > 0)
      note(cat("router_aux_loss_coef = ", number_text(coefficient),
               " is not taken: the auxiliary loss is what moe.balance and moe.aux_coefficient say"));
    if (const double noise = above_zero("router_jitter_noise"); noise > 0)
      unsupported(cat("router_jitter_noise = ", number_text(noise), ": no noise before the router"));
  }

  // The router of deepseek_v3.
  void sigmoid_experts() {
    ExpertSizes& e = model().experts;
    const int64_t layers = model().layers;
    e.router = config::Router::kSigmoid;
    e.router_bias = true;
    e.groups = keys_.size("n_group", keys_.json().contains("n_group") ? 1 : 8);
    e.top_groups = keys_.size("topk_group", keys_.json().contains("topk_group") ? 1 : 4);
    e.routed_scale = keys_.positive("routed_scaling_factor", 2.5);
    e.shared = keys_.size("n_shared_experts", 1);
    const int64_t dense = keys_.size("first_k_dense_replace", 3, /*least=*/0);
    if (dense >= layers) problems_.push_back(cat("first_k_dense_replace(", dense, ") leaves no layer with experts"));
    e.dense_layers.resize(static_cast<size_t>(std::min(dense, layers)));
    std::iota(e.dense_layers.begin(), e.dense_layers.end(), 0);
    if (!keys_.flag("norm_topk_prob", true)) unsupported("norm_topk_prob = false: sigmoid scores are weights in proportion");
    if (const int64_t step = keys_.size("moe_layer_freq", 1); step != 1) unsupported(cat("moe_layer_freq = ", step));
    if (keys_.text("scoring_func", "sigmoid") != "sigmoid") unsupported("scoring_func other than sigmoid");
    if (keys_.text("topk_method", "noaux_tc") != "noaux_tc") unsupported("topk_method other than noaux_tc");
    read_.further_layers = keys_.size(kFurtherLayersKey, 1, /*least=*/0);
    if (keys_.has(kFurtherLayersKey) && read_.further_layers > 0)
      note(cat(kFurtherLayersKey, " = ", read_.further_layers, ": layers behind the last that predict further tokens are not taken"));
  }

  // An MLP of `ffn` in their place: where mlp_only_layers says so, and in all layers but every decoder_sparse_step-th.
  void dense_layers() {
    const int64_t layers = model().layers, step = keys_.size("decoder_sparse_step", 1);
    const std::vector<int64_t> listed = keys_.indices("mlp_only_layers", layers);
    std::vector<int>& dense = model().experts.dense_layers;
    for (int64_t i = 0; i < layers; ++i)
      if ((i + 1) % step != 0 || std::ranges::find(listed, i) != listed.end()) dense.push_back(static_cast<int>(i));
    if (std::ssize(dense) == layers) problems_.push_back("mlp_only_layers and decoder_sparse_step leave no layer with experts");
  }

  // 0 where it is missing or no number.
  double above_zero(const char* key) const {
    const Json* value = keys_.find(key);
    return value && value->is_number() ? std::max(0.0, value->get<double>()) : 0;
  }

  // How many layers have a window.
  int64_t sliding_layers() {
    const bool used = keys_.flag("use_sliding_window", false);
    const int64_t layers = model().layers;
    const Json* types = keys_.find("layer_types");
    if (!types) return used ? std::max<int64_t>(0, layers - keys_.size("max_window_layers", 28, /*least=*/0)) : 0;
    int64_t sliding = 0;
    if (!types->is_array() || std::ssize(*types) != layers) {
      problems_.push_back(cat("layer_types is not a list of ", layers, " names, one a layer"));
      return used ? layers : 0;
    }
    for (const Json& type : *types) {
      if (type == "sliding_attention")
        ++sliding;
      else if (type != "full_attention")
        return unsupported(cat("layer_types: ", type.dump(), ": of full_attention, sliding_attention")), used ? layers : 0;
    }
    if (sliding > 0 && !used) problems_.push_back("layer_types has sliding_attention, but use_sliding_window is not true");
    return sliding;
  }

  void activations() {
    const bool gated = model().traits().gated_mlp;
    const char* key = gated ? "hidden_act" : "activation_function";
    const std::string name = keys_.text(key, gated ? "silu" : "gelu_new");
    const bool known = gated ? name == "silu" || name == "swish" : name == "gelu_new" || name == "gelu_pytorch_tanh";
    if (!known) unsupported(cat(key, " = \"", name, "\": of ", gated ? "silu" : "gelu_new, gelu_pytorch_tanh"));
  }

  void other_keys() {
    if (keys_.has("quantization_config"))
      unsupported("quantization_config: quantised weights; take the model in bf16, fp16 or fp32");
    if (const Json* names = keys_.find("architectures")) {
      const bool known = names->is_array() && std::all_of(names->begin(), names->end(), [&](const Json& name) {
        return name == family_->language_model || name == family_->bare_model;
      });
      if (!known)
        unsupported(cat("architectures = ", names->dump(), ": of ", family_->language_model, ", ", family_->bare_model));
    }
    if (!model().traits().gated_mlp) {
      for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
        if (keys_.flag(key, false)) unsupported(cat(key, " = true"));
      if (!keys_.flag("scale_attn_weights", true)) unsupported("scale_attn_weights = false");
    }
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"})
      if (const double dropout = above_zero(key); dropout > 0)
        note(cat(key, " = ", number_text(dropout), " is not taken: dropout is what model.dropout says, else 0"));
    if (const int64_t pieces = keys_.size("pretraining_tp", 1); pieces > 1)
      note(cat("pretraining_tp = ", pieces, " is not needed: with it one device computes products in ", pieces,
               " pieces, as if the layers were split; parallel.tp splits them for real"));
    read_.dtype = keys_.text("dtype", keys_.text("torch_dtype", ""));
  }

  void tokens(const Json& generation) {
    const auto take = [&](const HfKeys& keys) {
      if (std::vector<int64_t> ids = keys.ids("eos_token_id"); !ids.empty()) read_.eos_token_ids = std::move(ids);
      keys.ids("bos_token_id");  // of no use here, but no other text may stand there
    };
    take(keys_);
    if (generation.is_object()) take(HfKeys(generation, "generation_config.json: ", problems_));
  }

  HfConfig read_;
  std::string origin_;
  std::vector<std::string> problems_;
  std::vector<std::string> unsupported_;
  HfKeys keys_;
  const HfFamily* family_ = nullptr;
};

Json read_small(const fs::path& path) {
  if (fs::file_size(path) > kMostBytes)
    throw DataError({.code = "LS1117",
                     .what = cat("the file has ", fs::file_size(path), " bytes, more than ", kMostBytes),
                     .where = path.string()});
  return read_json(path);
}

}  // namespace

HfConfig parse_hf_config(const Json& config, const Json& generation, std::string_view origin) {
  if (!config.is_object())
    throw DataError({.code = "LS1117", .what = "not a JSON object", .where = std::string(origin)});
  return Reader(config, origin).run(generation);
}

HfConfig load_hf_config(const fs::path& dir, std::string_view name) {
  const fs::path path = dir / name, generation = dir / "generation_config.json";
  if (!fs::is_regular_file(path))
    throw DataError({.code = "LS1115",
                     .what = cat("no ", name, " in ", dir.string()),
                     .way_out = "name a model directory of Hugging Face: config.json beside *.safetensors, as "
                                "save_pretrained writes it"});
  const Json beside = fs::is_regular_file(generation) ? read_small(generation) : Json();
  return parse_hf_config(read_small(path), beside, path.string());
}

bool bounded_by_window(const ModelConfig& model) {
  return model.sliding_window > 0 && model.max_seq_len == model.sliding_window && hf_family(model.family).window == HfWindow::kByLayer;
}

}  // namespace lockstep::arch
