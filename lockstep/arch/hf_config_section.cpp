// [model] from.
#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {

namespace fs = std::filesystem;

std::optional<fs::path> hf_folder(const config::ModelSection& section) {
  if (section.from.empty()) return std::nullopt;
  return source_folder(section.from);
}

ModelConfig resolve_hf_model(const config::ModelSection& section) {
  std::vector<std::string> given;
  const auto refuse_if = [&](const char* key, bool set) {
    if (set) given.push_back(cat("model.", key));
  };
  refuse_if("preset", !section.preset.empty());
  refuse_if("family", section.family.has_value());
  refuse_if("layers", section.layers.has_value());
  refuse_if("hidden", section.hidden.has_value());
  refuse_if("heads", section.heads.has_value());
  refuse_if("kv_heads", section.kv_heads.has_value());
  refuse_if("head_size", section.head_size.has_value());
  refuse_if("ffn", section.ffn.has_value());
  refuse_if("vocab_size", section.vocab_size.has_value());
  refuse_if("tied", section.tied.has_value());
  refuse_if("norm_eps", section.norm_eps.has_value());
  refuse_if("rope_theta", section.rope_theta.has_value());
  if (!given.empty())
    throw ConfigError({.code = "LS1116",
                       .what = cat(join(given, ", "), " beside model.from: the directory says what the model is"),
                       .way_out = "leave them out; dropout and max_seq_len may be set"});
  ModelConfig model = load_hf_config(hf_folder(section).value()).model;
  model.dropout = section.dropout.value_or(model.dropout);
  if (!section.max_seq_len || *section.max_seq_len == model.max_seq_len) return model;
  if (model.traits().learned_positions)
    throw ConfigError({.code = "LS1116",
                       .what = cat("model.max_seq_len = ", *section.max_seq_len, ": the model has learned ",
                                   model.max_seq_len, " positions"),
                       .way_out = "leave it out; train.seq_len may be shorter"});
  if (model.sliding_window > 0 && *section.max_seq_len > model.sliding_window)
    throw ConfigError({.code = "LS1116",
                       .what = cat("model.max_seq_len = ", *section.max_seq_len, " is above the model's sliding_window = ",
                                   model.sliding_window, "; windows shorter than a sequence are not built"),
                       .way_out = cat("use max_seq_len <= ", model.sliding_window)});
  model.max_seq_len = *section.max_seq_len;
  return model;
}

}  // namespace lockstep::arch
