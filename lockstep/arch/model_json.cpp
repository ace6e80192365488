#include "lockstep/arch/model_json.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// One list of keys for both directions.
template <typename Model, typename Visit>
void visit_sizes(Model& model, Visit visit) {
  visit("layers", model.layers);
  visit("hidden", model.hidden);
  visit("heads", model.heads);
  visit("kv_heads", model.kv_heads);
  visit("head_size", model.head_size);
  visit("ffn", model.ffn);
  visit("vocab_size", model.vocab_size);
  visit("max_seq_len", model.max_seq_len);
  visit("tied", model.tied);
  visit("norm_eps", model.norm_eps);
  visit("rope_theta", model.rope_theta);
  visit("dropout", model.dropout);
}

}  // namespace

Json model_json(const ModelConfig& model) {
  Json json = {{"family", family_name(model.family)}};
  visit_sizes(model, [&](const char* key, const auto& value) { json[key] = value; });
  return json;
}

ModelConfig parse_model_json(const Json& json, std::string_view origin) {
  ModelConfig model;
  std::string reading = "family";
  try {
    const std::string family = json.at("family");
    model.family = family == family_name(Family::kLlama) ? Family::kLlama : Family::kGpt2;
    if (family != family_name(model.family)) throw std::invalid_argument("unknown family \"" + family + "\"");
    visit_sizes(model, [&](const char* key, auto& value) {
      reading = key;
      value = json.at(key).template get<std::remove_reference_t<decltype(value)>>();
    });
  } catch (const std::exception& error) {
    throw CheckpointError({.code = "LS1312", .what = cat("model key \"", reading, "\": ", error.what()),
                           .where = std::string(origin)});
  }
  return model;
}

}  // namespace lockstep::arch
