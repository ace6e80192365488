// Where a model or a tokenizer is read from. One rule for every field and verb that takes one: a directory, a file in it,
// or hf:DIR, the same directory with the word that it is a model directory of Hugging Face.
#pragma once

#include <array>
#include <filesystem>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kHfPrefix = "hf:";
inline constexpr const char* kHfWeights = "model.safetensors";
inline constexpr const char* kHfIndex = "model.safetensors.index.json";

// What stands beside a tokenizer.json in a model directory and belongs to it: a run keeps them, an export has them.
inline constexpr std::array kTokenizerFiles = {"tokenizer.json",   "tokenizer_config.json", "special_tokens_map.json",
                                               "added_tokens.json", "chat_template.jinja",   "generation_config.json"};

// The directory: without hf:, and of a regular file its folder. DataError LS1203 where nothing is named.
std::filesystem::path source_folder(std::string_view source);

// The tokenizer.json, which may not exist: the file that is named, or the one of the directory.
std::filesystem::path tokenizer_file(std::string_view source);

// Whether a model directory of Hugging Face is meant and not a run or one of its steps: hf: says so, or a config.json or
// safetensors do that lie there.
bool names_hf_model(std::string_view source);

}  // namespace lockstep
