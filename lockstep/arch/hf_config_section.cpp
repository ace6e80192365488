// [model] from.
#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {

namespace fs = std::filesystem;

std::optional<fs::path> hf_folder(const config::ModelSection& section) {
  if (section.from.empty()) return std::nullopt;
  return source_folder(section.from);
}

namespace {

// Keys that the directory answers, and the section names all the same.
std::vector<std::string> keys_beside(const config::ModelSection& section) {
  std::vector<std::string> given;
  const auto add_if = [&](const char* key, bool set) {
    if (set) given.push_back(cat("model.", key));
  };
  add_if("preset", !section.preset.empty());
  add_if("family", section.family.has_value());
  add_if("layers", section.layers.has_value());
  add_if("hidden", section.hidden.has_value());
  add_if("heads", section.heads.has_value());
  add_if("kv_heads", section.kv_heads.has_value());
  add_if("head_size", section.head_size.has_value());
  add_if("ffn", section.ffn.has_value());
  add_if("vocab_size", section.vocab_size.has_value());
  add_if("tied", section.tied.has_value());
  add_if("norm_eps", section.norm_eps.has_value());
  add_if("rope_theta", section.rope_theta.has_value());
  return given;
}

ModelFindings refused(int depth, const std::string& key, std::string what, config::Suggestion way) {
  return {.code = "LS1116",
          .problems = {{.key = key, .what = std::move(what), .ways = {std::move(way)}, .depth = depth}}};
}

}  // namespace

ModelFindings judge_hf_model(const config::ModelSection& section) {
  if (const std::vector<std::string> given = keys_beside(section); !given.empty()) {
    config::Suggestion without{.changes = {}, .text = "leave them out; dropout and max_seq_len may be set"};
    for (const std::string& key : given) without.changes.push_back({.key = key});
    return refused(kNamesDepth, given.front(),
                   cat(join(given, ", "), " beside model.from: the directory says what the model is"), std::move(without));
  }
  ModelConfig model = load_hf_config(hf_folder(section).value()).model;
  model.dropout = section.dropout.value_or(model.dropout);
  if (!section.max_seq_len || *section.max_seq_len == model.max_seq_len) return {.model = model};
  const char* key = "model.max_seq_len";
  if (model.traits().learned_positions)
    return refused(kSizesDepth, key,
                   cat(key, " = ", *section.max_seq_len, ": the model has learned ", model.max_seq_len, " positions"),
                   {.changes = {{.key = key}}, .text = "leave it out; train.seq_len may be shorter"});
  if (model.sliding_window > 0 && *section.max_seq_len > model.sliding_window)
    return refused(kSizesDepth, key,
                   cat(key, " = ", *section.max_seq_len, " is above the model's sliding_window = ", model.sliding_window,
                       "; windows shorter than a sequence are not built"),
                   {.changes = {{key, cat(model.sliding_window)}}, .text = cat("use max_seq_len <= ", model.sliding_window)});
  model.max_seq_len = *section.max_seq_len;
  return {.model = model};
}

}  // namespace lockstep::arch
