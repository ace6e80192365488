// A [model] section judged: the model that it describes, or what is wrong with it and what would mend that. resolve_model()
// refuses what is found; whoever judges more of a configuration tries the ways out against all of it first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::arch {

// In the order in which a section is judged: LayoutProblem::depth of what is found.
enum ModelDepth { kBoundsDepth, kNamesDepth, kFamilyDepth, kVocabularyDepth, kSizesDepth };

struct ModelFindings {
  std::string code{};     // LS1110 to LS1114, LS1116
  std::string heading{};  // above several problems; empty where one says all
  std::vector<config::LayoutProblem> problems{};
  std::optional<ModelConfig> model{};  // where there are none
};

// As resolve_model(), which see; ways out are left out where nobody asks for them. DataError LS1115, LS1117, LS1118, LS1205 for
// the files of section.from.
ModelFindings judge_model(const config::ModelSection& section, int64_t tokenizer_vocab_size, bool with_ways = true);
// The same where section.from names a directory: its model with the section's dropout and max_seq_len. LS1116 for any other key
// beside `from`, and for a max_seq_len that the model cannot have.
ModelFindings judge_hf_model(const config::ModelSection& section);

// Of a ModelConfig or a ModelSection, which call them the same.
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
}
// Products of two others fit into 64 bits.
constexpr int64_t most_of_size(std::string_view name) { return int64_t{1} << (name == "layers" ? 16 : 31); }

// Sizes out of their range, which begins at 1.
std::vector<config::LayoutProblem> bound_problems(const config::ModelSection& section);
// What size_problems() says, with ways out; and where nobody has set the head_size, heads that do not fill the hidden size.
std::vector<config::LayoutProblem> contradictions(const ModelConfig& model, bool derived_head_size, bool with_ways);

}  // namespace lockstep::arch
