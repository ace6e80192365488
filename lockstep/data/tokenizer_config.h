// The tokens with a part to play, from the files beside a tokenizer.json: tokenizer_config.json,
// special_tokens_map.json and generation_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::data {

struct SpecialIds {
  std::optional<int32_t> bos, eos, pad, unk;
  std::vector<int32_t> stop;  // every id that ends a generation: eos, then those of generation_config.json
};

// What the files of `folder` say; those that are missing say nothing. tokenizer_config.json comes before
// special_tokens_map.json. `id_of` gives the id of a token. DataError LS1205 (no JSON), LS1216 where a file is
// malformed or names a token that does not exist.
SpecialIds read_special_ids(const std::filesystem::path& folder,
                            const std::function<std::optional<int32_t>(std::string_view)>& id_of, int64_t vocab_size);

}  // namespace lockstep::data
