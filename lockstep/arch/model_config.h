// The model as data: one struct of sizes, resolved from a preset and the user's [model] table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::arch {

// gpt2: LayerNorm, learned positions, biases, GELU-tanh (Radford et al. 2019).
// llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases (Touvron et al. 2023).
enum class Family { kGpt2, kLlama };
std::string_view family_name(Family family);

struct ModelConfig {
  Family family = Family::kGpt2;
  int64_t layers = 0;
  int64_t hidden = 0;      // D
  int64_t heads = 0;       // H
  int64_t kv_heads = 0;    // = heads for gpt2
  int64_t head_size = 0;   // K; heads * head_size may differ from hidden
  int64_t ffn = 0;         // F
  int64_t vocab_size = 0;  // V
  int64_t max_seq_len = 0;
  bool tied = true;  // the head's weight is the token embedding
  double norm_eps = 1e-5;
  double rope_theta = 10000;  // llama only
  double dropout = 0;         // on the embedding's sum and on both residual branches; not on attention probabilities
  bool operator==(const ModelConfig&) const = default;
};

std::vector<std::string> preset_names();
// The preset (default gpt2-10m) with the user's fields on top. `vocab_size` = 0 there and here means: from the tokenizer,
// whose size the caller passes (0 = none known: then the preset must have one). ConfigError LS1110.. for sizes that
// contradict each other, all at once, with the equation ("heads(6) % kv_heads(4) = 2").
ModelConfig resolve_model(const config::ModelSection& section, int64_t tokenizer_vocab_size = 0);
// The same model as a text of one line: "gpt2 12 x 768, 12 heads, ffn 3072, vocab 50257, 124.4M parameters".
std::string describe(const ModelConfig& model);

}  // namespace lockstep::arch
